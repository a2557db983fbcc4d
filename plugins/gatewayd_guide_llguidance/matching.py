"""Sequences that follow a grammar of llguidance."""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gatewayd_guide_llguidance.lexers import Lexer
from gatewayd_hooks.guiding import GrammarRefused, GuideFailed

if TYPE_CHECKING:
    import numpy as np
    from llguidance import LLMatcher
    from numpy.typing import NDArray

    from gatewayd_guide_llguidance.vocabulary import LlguidanceVocabulary


_MOST_LETTERS = 300
_USED_UP = ("too many states", "too many expressions")
_TOO_MANY = "the answer cannot go on: its grammar has too many states; make it simpler"
_APART = 32
"""Tokens of a sequence between two lexers: who fills one sooner does so by itself."""
_KEPT_BYTES = 8 << 20
"""What a lexer may have grown by that nobody uses."""


class LlGrammar:
    """A matcher at the beginning, which is copied.

    All copies add to one lexer, whose states are limited. When it is full a grammar is compiled
    anew: otherwise nobody could ever follow it again. One that has grown large is let go with its
    last copy, and the next to come has it compiled anew too.

    Args:
        first: the lexer.
        make: makes another.
        vocabulary: of the model.
    """

    def __init__(
        self, first: Lexer, make: Callable[[], Lexer], vocabulary: LlguidanceVocabulary
    ) -> None:
        self._kept: Lexer | None = first
        self._now = weakref.ref(first)
        self._make = make
        self._vocabulary = vocabulary
        self._renewing = threading.Lock()

    @property
    def num_bytes(self) -> int:
        """What it takes where nobody follows it."""
        kept = self._kept
        return 0 if kept is None else kept.num_bytes

    def start(self) -> LlMatcher:
        """A matcher that stands at the beginning.

        Raises:
            GuideFailed: its lexer was let go, and it takes too long to make another by now.
        """
        return LlMatcher(self, self.renewed(None), self._vocabulary)

    def renewed(self, used_up: Lexer | None) -> Lexer:
        """A lexer that is not full.

        Args:
            used_up: one that is; None for none.

        Raises:
            GuideFailed: it takes too long by now.
        """
        with self._renewing:
            now = self._now()
            if now is None or now is used_up:
                try:
                    self._kept = now = self._make()
                except GrammarRefused as refused:
                    raise GuideFailed(f"the answer cannot go on: {refused}") from None
                self._now = weakref.ref(now)
            return now

    def weigh(self, lexer: Lexer, matcher: LLMatcher) -> None:
        """See whether a lexer, which a matcher uses, may stay for those to come."""
        lexer.weigh(matcher)
        if lexer.grown_bytes > _KEPT_BYTES and self._kept is lexer:
            self._kept = None


class LlMatcher:
    """One sequence. llguidance stops where a grammar can only end; end tokens are counted here.

    Attributes:
        matcher: llguidance's own.
    """

    def __init__(self, grammar: LlGrammar, lexer: Lexer, vocabulary: LlguidanceVocabulary) -> None:
        """Begin at the beginning.

        Args:
            grammar: that it follows.
            lexer: whose first matcher is copied.
            vocabulary: of the model.
        """
        self._grammar = grammar
        self._lexer = lexer
        self.matcher = lexer.first.deep_copy()
        self._vocabulary = vocabulary
        self._tokens: list[int] = []
        self._num_ends = 0
        self._renewed_at = -_APART
        self._mask: NDArray[np.int32] | None = None

    def __del__(self) -> None:
        """The last to go lets a lexer go with it that has grown too large."""
        self._grammar.weigh(self._lexer, self.matcher)

    @property
    def has_ended(self) -> bool:
        """Whether an end token was accepted."""
        return self._num_ends > 0

    def accept(self, tokens: Sequence[int]) -> int:
        """Go on by tokens, as far as the grammar allows them."""
        for count, token in enumerate(tokens):
            if not self._take(token):
                return count
        return len(tokens)

    def _take(self, token: int) -> bool:
        if token in self._vocabulary.ends and (self.has_ended or self.matcher.is_accepting()):
            self._num_ends += 1
            return True
        if self.has_ended or not 0 <= token < self._vocabulary.size:
            return False
        taken = self.matcher.try_consume_tokens([token]) == 1
        if self.is_mended(is_lost=not taken and self._had_allowed(token)):
            taken = self.matcher.try_consume_tokens([token]) == 1
            self.check()
        if taken:
            self._tokens.append(token)
            self._mask = None
            if self._lexer.touch():
                self._grammar.weigh(self._lexer, self.matcher)
        return taken

    def _had_allowed(self, token: int) -> bool:
        """Whether the mask of now has a token: one that is refused then, has found no state."""
        mask = self._mask
        return mask is not None and bool(mask[token // 32] >> (token % 32) & 1)

    def rollback(self, count: int) -> None:
        """Take the last accepted tokens back."""
        ends = min(count, self._num_ends)
        self._num_ends -= ends
        if count > ends:
            self._mask = None
            self.matcher.rollback(count - ends)
            self.check()
            del self._tokens[len(self._tokens) - (count - ends) :]

    def fill(self, mask: NDArray[np.int32]) -> None:
        """Write which tokens may come next."""
        if self.has_ended:
            mask[:] = self._vocabulary.end_mask
            return
        self.matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if self.is_mended():
            self.matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
            self.check()
        self.keep(mask)

    def keep(self, mask: NDArray[np.int32]) -> None:
        """What was filled for it."""
        self._mask = mask.copy()

    def forced(self) -> Sequence[int]:
        """What llguidance would not let the model spell otherwise."""
        if self.has_ended:
            return ()
        forced = self.matcher.compute_ff_tokens()
        return () if self.is_mended() else forced

    def fork(self) -> LlMatcher:
        """Another one that stands where this one stands."""
        other = LlMatcher(self._grammar, self._lexer, self._vocabulary)
        other.matcher, other._tokens = self.matcher.deep_copy(), [*self._tokens]
        other._num_ends, other._renewed_at = self._num_ends, self._renewed_at
        return other

    def is_mended(self, *, is_lost: bool = False) -> bool:
        """Whether a lexer was full and another is used; the last call is to be made again.

        Args:
            is_lost: whether something went wrong of which llguidance says nothing.

        Raises:
            GuideFailed: another limit was reached, or this one again.
        """
        if self.matcher.is_error():
            if not any(said in _reason(self.matcher.get_error()) for said in _USED_UP):
                self.check()
        elif not is_lost:
            return False
        if len(self._tokens) - self._renewed_at < _APART:
            raise GuideFailed(_TOO_MANY)
        self._renewed_at = len(self._tokens)
        self._lexer = self._grammar.renewed(self._lexer)
        self.matcher = self._lexer.first.deep_copy()
        if not self.matcher.consume_tokens(self._tokens):
            raise GuideFailed(_TOO_MANY)
        return True

    def check(self) -> None:
        """Refuse to go on after a limit was reached: llguidance would allow the end.

        Raises:
            GuideFailed: it was.
        """
        if self.matcher.is_error():
            raise GuideFailed(f"the answer cannot go on: {told(self.matcher.get_error())}")


_OURS = re.compile(r"^(at \d+\(\d+\): )?failed to compile JSON schema: ")
"""Where a schema stands in a grammar that its client has not written."""


def told(error: str) -> str:
    """What matters of what llguidance says, and no more of it than fits a sentence."""
    error = _reason(error)
    if "NoExtensionBias" in error:
        return "the grammar allows nothing here"
    lines = [line.strip() for line in error.splitlines()]
    lines = [line for line in lines if line and not line.startswith("<")] or ["no reason is given"]
    reasons = [line.removeprefix("error:").strip() for line in lines if line.startswith("error:")]
    return _OURS.sub("", (reasons or lines)[0])[:_MOST_LETTERS]


def _reason(error: str) -> str:
    """Without the state and the grammar, which stand behind it."""
    return error.partition("<state>")[0]
