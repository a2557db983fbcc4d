"""A matcher of an answer that may reason first: its grammar begins behind the reasoning."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.sampling.guides.reasoning_marks import CLOSED, DEAD, Boundary
from gatewayd_hooks.guiding import Grammar, Matcher


class Thinking:
    """Follows the reasoning, then a matcher.

    While a mark may begin the reasoning and has not been read, the answer may as well be without
    any: a matcher of its own follows that, and what either allows may come.

    Args:
        grammar: of the answer.
        boundary: of the reasoning.
    """

    def __init__(self, grammar: Grammar, boundary: Boundary) -> None:
        self._boundary = boundary
        self._behind = grammar.start()
        self._places = [boundary.first]
        """Before each token of the reasoning, and behind the last."""
        self._plain = grammar.start() if boundary.is_open(boundary.first) else None
        self._num_plain = 0  # of the tokens in ``_places``, those that it has accepted
        self._num_after = 0  # accepted since there is but one matcher

    @property
    def guided(self) -> Matcher | None:
        """The matcher that alone says what may come; None where others have a say."""
        place = self._places[-1]
        if place == DEAD:
            return self._plain
        return self._behind if place == CLOSED else None

    @property
    def _is_plain(self) -> bool:
        """Whether the answer may so far be one without reasoning."""
        is_open = self._boundary.is_open(self._places[-1])
        return is_open and self._plain is not None and self._num_plain == len(self._places) - 1

    def accept(self, tokens: Sequence[int]) -> int:
        """See ``Matcher``."""
        for count, token in enumerate(tokens):
            matcher = self.guided
            if matcher is not None:
                more = matcher.accept(tokens[count:])
                self._num_after += more
                return count + more
            if not self._take(token):
                return count
        return len(tokens)

    def _take(self, token: int) -> bool:
        place = self._boundary.step(self._places[-1], token)
        if self._plain is not None and self._is_plain and self._plain.accept([token]) == 1:
            self._num_plain += 1
        elif place == DEAD:
            return False
        self._places.append(place)
        return True

    def rollback(self, count: int) -> None:
        """See ``Matcher``."""
        after = min(count, self._num_after)
        matcher = self.guided
        if after and matcher is not None:
            matcher.rollback(after)
            self._num_after -= after
        if count > after:
            del self._places[after - count :]
            back = self._num_plain - (len(self._places) - 1)
            if back > 0 and self._plain is not None:
                self._plain.rollback(back)
                self._num_plain -= back

    def fill(self, mask: NDArray[np.int32]) -> None:
        """See ``Matcher``."""
        if (matcher := self.guided) is not None:
            matcher.fill(mask)
            return
        if self._plain is not None and self._is_plain:
            self._plain.fill(mask)
            mask |= self._boundary.mask(self._places[-1])
        else:
            mask[:] = self._boundary.mask(self._places[-1])

    def forced(self) -> Sequence[int]:
        """See ``Matcher``."""
        matcher = self.guided
        return () if matcher is None else matcher.forced()
