"""Memory accounting of llguidance lexers, and return of freed memory to the system."""

from __future__ import annotations

import ctypes
import re
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLMatcher

_COST = re.compile(r'"lexer_cost": (\d+)')
_COMPILED_BYTES = 64
"""Bytes per unit of fuel spent on compiling."""
_GROWN_BYTES = 256
"""Bytes per unit of fuel spent on matching: from 8, where expressions grow, to 210, where combined
states are built."""
_STATE_BYTES = 1024
"""Bytes per state, of which up to 850 were measured."""
_BASE_BYTES = 1 << 17
_CHAR_BYTES = 64
"""Bytes per character of the grammar, as parsed by llguidance."""
_MEASURED, _MEASURED_IDLE = 16, 512
"""Tokens between measurements, which take 0.3 ms: while it grows, and while it does not."""
_GROWTH_BYTES = 1 << 18
"""Growth between measurements that counts; less counts as none."""
_TRIM_BYTES = 16 << 20
_REST_SECONDS = 0.05
_NO_TOKEN = 1 << 30
"""Token id outside of any vocabulary."""


class Lexer:
    """llguidance lexer, shared by all copies of a matcher; it grows and never shrinks.

    Args:
        first: matcher in the initial state, which is copied.
        num_chars: characters of the grammar.
        states: maximum number of states.

    Attributes:
        first: the same.
        grown_bytes: estimated growth at the last measurement, rather more than less.
    """

    def __init__(self, first: LLMatcher, num_chars: int, states: int) -> None:
        self.first = first
        self.grown_bytes = 0
        self._most = _STATE_BYTES * states
        self._taken = 0
        self._apart = _MEASURED
        self._burnt = burnt = _burnt_by(first)
        self._base = _BASE_BYTES + _CHAR_BYTES * num_chars + _COMPILED_BYTES * burnt

    @property
    def num_bytes(self) -> int:
        """Estimated memory, including the growth."""
        return self._base + self.grown_bytes

    def touch(self) -> bool:
        """Count a token; return whether it is time to measure the growth."""
        self._taken += 1
        return self._taken >= self._apart

    def measure(self, matcher: LLMatcher) -> None:
        """Measure the growth, if there may be any.

        Args:
            matcher: one that uses the lexer, through which it is measured.
        """
        # At interpreter shutdown it is useless, and half of the required modules are gone.
        if self._taken and not _TRIMMER.is_ending():
            self._taken = 0
            before = self.grown_bytes
            grown = _GROWN_BYTES * (_burnt_by(matcher) - self._burnt)
            # A lexer never shrinks, and never exceeds its maximum of states, whatever the estimate
            # says.
            self.grown_bytes = max(before, min(grown, self._most))
            is_growing = self.grown_bytes - before > _GROWTH_BYTES
            self._apart = _MEASURED if is_growing else min(2 * self._apart, _MEASURED_IDLE)

    def __del__(self) -> None:
        """Announce the freed memory, which malloc would otherwise retain."""
        _TRIMMER.add(self.num_bytes)


class _Trimmer:
    """Makes malloc return freed memory to the system, when it is too much to be reused soon.

    Once for everything that is freed at about the same time, and in a thread: it takes
    milliseconds.
    """

    def __init__(self) -> None:
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        # Stored, as module globals may already be gone when a lexer is deleted at shutdown.
        self.is_ending = sys.is_finalizing
        self._num_bytes = 0

    def add(self, num_bytes: int) -> None:
        """Announce that this much will be freed in a moment."""
        self._num_bytes += num_bytes
        # A thread cannot be started at interpreter shutdown.
        if self._num_bytes >= _TRIM_BYTES and self._trim is not None and not self.is_ending():
            self._num_bytes = 0
            timer = threading.Timer(_REST_SECONDS, self._trim, (0,))
            timer.daemon = True
            timer.start()


_TRIMMER = _Trimmer()


def _burnt_by(matcher: LLMatcher) -> int:
    """Return the fuel that a matcher's lexer has consumed so far.

    llguidance reports it only in the error for a rejected token.
    """
    # A copy, because the error ends it; both share the lexer, whose cost is reported.
    probe = matcher.deep_copy()
    probe.consume_token(_NO_TOKEN)
    # The first match: the grammar follows, whose text is untrusted.
    found = _COST.search(probe.get_error())
    return 0 if found is None else int(found[1])
