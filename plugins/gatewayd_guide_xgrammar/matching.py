"""Matchers of XGrammar grammars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xgrammar import GrammarMatcher

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from xgrammar import CompiledGrammar

    from gatewayd_guide_xgrammar.vocabulary import XgrammarVocabulary


class XgGrammar:
    """Compiled grammar; matchers share it."""

    def __init__(self, compiled: CompiledGrammar, vocabulary: XgrammarVocabulary) -> None:
        self._compiled = compiled
        self._vocabulary = vocabulary

    @property
    def num_bytes(self) -> int:
        """Memory used; it does not grow."""
        return int(self._compiled.memory_size_bytes)

    def start(self) -> XgMatcher:
        """Return a matcher in the initial state."""
        return XgMatcher(GrammarMatcher(self._compiled), self._vocabulary)


class XgMatcher:
    """Matcher of one sequence. XGrammar allows nothing after an end token; they are counted here.

    Attributes:
        matcher: XGrammar's own.
    """

    def __init__(
        self, matcher: GrammarMatcher, vocabulary: XgrammarVocabulary, num_ends: int = 0
    ) -> None:
        self.matcher = matcher
        self._vocabulary = vocabulary
        self._num_ends = num_ends

    @property
    def has_ended(self) -> bool:
        """Whether an end token was accepted."""
        return self._num_ends > 0

    def accept(self, tokens: Sequence[int]) -> int:
        """Advance by tokens, as far as the grammar allows them."""
        for count, token in enumerate(tokens):
            if not self._accept_one(token):
                return count
        return len(tokens)

    def _accept_one(self, token: int) -> bool:
        if token in self._vocabulary.ends:
            is_end = self.has_ended or bool(self.matcher.is_completed())
            self._num_ends += is_end
            return is_end
        if self.has_ended or not 0 <= token < self._vocabulary.size:
            return False
        return bool(self.matcher.accept_token(token))

    def rollback(self, count: int) -> None:
        """Undo the last accepted tokens."""
        # End tokens come last, and XGrammar does not know of them.
        ends = min(count, self._num_ends)
        self._num_ends -= ends
        if count > ends:
            self.matcher.rollback(count - ends)

    def fill(self, mask: NDArray[np.int32]) -> None:
        """Write the mask of allowed next tokens."""
        if self.has_ended:
            mask[:] = self._vocabulary.end_mask
        else:
            self.matcher.fill_next_token_bitmask(mask[None], 0)

    def forced(self) -> Sequence[int]:
        """Return nothing: XGrammar allows every spelling of forced text."""
        return ()

    def fork(self) -> XgMatcher:
        """Return an independent matcher in the same state."""
        return XgMatcher(self.matcher.fork(), self._vocabulary, self._num_ends)
