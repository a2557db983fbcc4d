"""Matchers of llguidance grammars."""

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
"""Minimum number of tokens of a sequence between two lexers; a sequence that fills one sooner
exceeds the limit by itself."""
_KEPT_BYTES = 8 << 20
"""Maximum growth of a lexer that is cached while unused."""


class LlGrammar:
    """Grammar with a matcher in the initial state, which is copied.

    All copies share one lexer, whose states are limited. When it is full the grammar is compiled
    again: otherwise no sequence could ever follow it again. One that has grown large is released
    with its last copy, and compiled again for the next sequence.

    Args:
        first: the lexer.
        make: creates another.
        vocabulary: of the model.
    """

    def __init__(
        self, first: Lexer, make: Callable[[], Lexer], vocabulary: LlguidanceVocabulary
    ) -> None:
        # `_kept` caches the lexer while no sequence uses it; `_now` finds it as long as anything
        # holds it.
        self._kept: Lexer | None = first
        self._now = weakref.ref(first)
        self._make = make
        self._vocabulary = vocabulary
        self._renewing = threading.Lock()

    @property
    def num_bytes(self) -> int:
        """Memory used when no sequence follows it."""
        kept = self._kept
        return 0 if kept is None else kept.num_bytes

    def start(self) -> LlMatcher:
        """Return a matcher in the initial state.

        Raises:
            GuideFailed: its lexer was released, and compiling another takes too long.
        """
        return LlMatcher(self, self.renewed(None), self._vocabulary)

    def renewed(self, used_up: Lexer | None) -> Lexer:
        """Return a lexer that is not full, compiling one if necessary.

        Args:
            used_up: a full one; None for none.

        Raises:
            GuideFailed: compiling takes too long.
        """
        with self._renewing:
            # Within the lock, so that sequences that find one lexer full share its replacement.
            now = self._now()
            if now is None or now is used_up:
                try:
                    self._kept = now = self._make()
                except GrammarRefused as refused:
                    raise GuideFailed(f"the answer cannot go on: {refused}") from None
                self._now = weakref.ref(now)
            return now

    def measure(self, lexer: Lexer, matcher: LLMatcher) -> None:
        """Measure a lexer, and stop caching it if it has grown too large."""
        lexer.measure(matcher)
        if lexer.grown_bytes > _KEPT_BYTES and self._kept is lexer:
            self._kept = None


class LlMatcher:
    """Matcher of one sequence. llguidance stops at the end of a grammar.

    End tokens are counted here.

    Attributes:
        matcher: llguidance's own.
    """

    def __init__(self, grammar: LlGrammar, lexer: Lexer, vocabulary: LlguidanceVocabulary) -> None:
        """Start in the initial state.

        Args:
            grammar: to follow.
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
        """Measure the lexer: it is released with its last matcher if it has grown too large."""
        self._grammar.measure(self._lexer, self.matcher)

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
        if token in self._vocabulary.ends and (self.has_ended or self.matcher.is_accepting()):
            self._num_ends += 1
            return True
        if self.has_ended or not 0 <= token < self._vocabulary.size:
            return False
        taken = self.matcher.try_consume_tokens([token]) == 1
        if self.replace_full_lexer(is_rejected=not taken and self._had_allowed(token)):
            taken = self.matcher.try_consume_tokens([token]) == 1
            self.check()
        if taken:
            self._tokens.append(token)
            # The stored mask is valid for the state before this token only.
            self._mask = None
            if self._lexer.touch():
                self._grammar.measure(self._lexer, self.matcher)
        return taken

    def _had_allowed(self, token: int) -> bool:
        """Whether the current mask allows a token: if it is rejected anyway, the lexer was full."""
        mask = self._mask
        return mask is not None and bool(mask[token // 32] >> (token % 32) & 1)

    def rollback(self, count: int) -> None:
        """Undo the last accepted tokens."""
        # End tokens come last, and llguidance does not know of them.
        ends = min(count, self._num_ends)
        self._num_ends -= ends
        if count > ends:
            self._mask = None
            self.matcher.rollback(count - ends)
            self.check()
            del self._tokens[len(self._tokens) - (count - ends) :]

    def fill(self, mask: NDArray[np.int32]) -> None:
        """Write the mask of allowed next tokens."""
        if self.has_ended:
            mask[:] = self._vocabulary.end_mask
            return
        self.matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if self.replace_full_lexer():
            self.matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
            self.check()
        self.cache_mask(mask)

    def cache_mask(self, mask: NDArray[np.int32]) -> None:
        """Store a copy of the mask that was filled for this matcher."""
        # The caller reuses its buffer for the next step.
        self._mask = mask.copy()

    def forced(self) -> Sequence[int]:
        """Return the tokens to which llguidance allows no alternative."""
        if self.has_ended:
            return ()
        forced = self.matcher.compute_ff_tokens()
        # Reporting none is always valid, and the new lexer finds them at the next call.
        return () if self.replace_full_lexer() else forced

    def fork(self) -> LlMatcher:
        """Return an independent matcher in the same state."""
        other = LlMatcher(self._grammar, self._lexer, self._vocabulary)
        other.matcher, other._tokens = self.matcher.deep_copy(), [*self._tokens]
        other._num_ends, other._renewed_at = self._num_ends, self._renewed_at
        return other

    def replace_full_lexer(self, *, is_rejected: bool = False) -> bool:
        """Replace a full lexer; return whether it was, and the last call must be repeated.

        Args:
            is_rejected: whether a token was rejected without an error, which means a full lexer.

        Raises:
            GuideFailed: another limit was reached, or this one again.
        """
        if self.matcher.is_error():
            if not any(message in _reason(self.matcher.get_error()) for message in _USED_UP):
                self.check()
        elif not is_rejected:
            return False
        # Otherwise a sequence could compile the grammar at every token.
        if len(self._tokens) - self._renewed_at < _APART:
            raise GuideFailed(_TOO_MANY)
        self._renewed_at = len(self._tokens)
        self._lexer = self._grammar.renewed(self._lexer)
        self.matcher = self._lexer.first.deep_copy()
        # Restore the state in the new lexer from the tokens so far.
        if not self.matcher.consume_tokens(self._tokens):
            raise GuideFailed(_TOO_MANY)
        return True

    def check(self) -> None:
        """Raise if a limit was reached: llguidance would allow the end.

        Raises:
            GuideFailed: a limit was reached.
        """
        if self.matcher.is_error():
            raise GuideFailed(
                f"the answer cannot go on: {describe_error(self.matcher.get_error())}"
            )


_OURS = re.compile(r"^(at \d+\(\d+\): )?failed to compile JSON schema: ")
"""Prefix with the location of a schema in the generated grammar, which the client does not know."""


def describe_error(error: str) -> str:
    """Return the relevant part of llguidance's error message, shortened to a sentence."""
    error = _reason(error)
    if "NoExtensionBias" in error:
        return "the grammar allows nothing here"
    lines = [line.strip() for line in error.splitlines()]
    lines = [line for line in lines if line and not line.startswith("<")] or ["no reason is given"]
    reasons = [line.removeprefix("error:").strip() for line in lines if line.startswith("error:")]
    return _OURS.sub("", (reasons or lines)[0])[:_MOST_LETTERS]


def _reason(error: str) -> str:
    """Return the error without the state and the grammar that follow it."""
    return error.partition("<state>")[0]
