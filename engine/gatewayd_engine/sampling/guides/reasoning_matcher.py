"""Matcher of outputs with optional reasoning, whose grammar applies after the reasoning."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.sampling.guides.reasoning_marks import CLOSED, DEAD, ReasoningBoundary
from gatewayd_hooks.guiding import Grammar, Matcher


class ReasoningMatcher:
    """Matches reasoning up to its end, then the grammar of the answer.

    As long as the begin marker is optional and not complete, the output may also be an answer
    without reasoning: a second matcher follows that, and tokens allowed by either are allowed.

    Args:
        grammar: grammar of the answer.
        boundary: markers of the reasoning.
    """

    def __init__(self, grammar: Grammar, boundary: ReasoningBoundary) -> None:
        self._boundary = boundary
        self._answer = grammar.start()
        self._states = [boundary.first]
        """States of the boundary before each token of the reasoning, and after the last."""
        self._plain = grammar.start() if boundary.is_open(boundary.first) else None
        self._num_plain = 0  # tokens of ``_states`` that the matcher without reasoning accepted
        self._num_after = 0  # tokens accepted since only one matcher is left

    @property
    def guided(self) -> Matcher | None:
        """The matcher that alone determines the next tokens; None if there is more than one."""
        state = self._states[-1]
        if state == DEAD:
            return self._plain
        return self._answer if state == CLOSED else None

    @property
    def _is_plain(self) -> bool:
        """Whether the output so far may be an answer without reasoning."""
        is_open = self._boundary.is_open(self._states[-1])
        return is_open and self._plain is not None and self._num_plain == len(self._states) - 1

    def accept(self, tokens: Sequence[int]) -> int:
        """See ``Matcher``."""
        for count, token in enumerate(tokens):
            matcher = self.guided
            if matcher is not None:
                more = matcher.accept(tokens[count:])
                self._num_after += more
                return count + more
            if not self._accept_reasoning(token):
                return count
        return len(tokens)

    def _accept_reasoning(self, token: int) -> bool:
        state = self._boundary.step(self._states[-1], token)
        # Refused only if the token continues neither reasoning nor an answer without it.
        if self._plain is not None and self._is_plain and self._plain.accept([token]) == 1:
            self._num_plain += 1
        elif state == DEAD:
            return False
        self._states.append(state)
        return True

    def rollback(self, count: int) -> None:
        """See ``Matcher``."""
        after = min(count, self._num_after)
        matcher = self.guided
        if after and matcher is not None:
            matcher.rollback(after)
            self._num_after -= after
        if count > after:
            del self._states[after - count :]
            # The second matcher may have stopped before the tokens that are undone.
            back = self._num_plain - (len(self._states) - 1)
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
            mask |= self._boundary.mask(self._states[-1])
        else:
            mask[:] = self._boundary.mask(self._states[-1])

    def forced(self) -> Sequence[int]:
        """See ``Matcher``."""
        matcher = self.guided
        return () if matcher is None else matcher.forced()
