"""What the expressions of a grammar take in memory, and how it is given back."""

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
"""For a unit of the fuel that compiling burns."""
_GROWN_BYTES = 256
"""The same where it is followed: from 8, where expressions grow, to 210, where states of several
are put together."""
_STATE_BYTES = 1024
"""For a state, of up to 850 that were seen."""
_BASE_BYTES = 1 << 17
_LETTER_BYTES = 64
"""For a letter of the grammar, as llguidance reads it."""
_WEIGHED, _WEIGHED_IDLE = 16, 512
"""Tokens after which it is weighed, which takes 0.3 ms: while it grows, and where it does not."""
_GROWTH_BYTES = 1 << 18
"""From one time to the next: less is none."""
_GIVEN_BYTES = 16 << 20
_REST_SECONDS = 0.05
_NOBODY = 1 << 30
"""A token that no vocabulary has."""


class Lexer:
    """One lexer of llguidance: all copies of a matcher add to it, and it is never made smaller.

    Args:
        first: a matcher at the beginning, which is copied.
        letters: of the grammar.
        states: that it may have.

    Attributes:
        first: the same.
        grown_bytes: what it had grown by when it was weighed, rather more than less.
    """

    def __init__(self, first: LLMatcher, letters: int, states: int) -> None:
        self.first = first
        self.grown_bytes = 0
        self._most = _STATE_BYTES * states
        self._taken = 0
        self._apart = _WEIGHED
        self._burnt = burnt = _burnt_by(first)
        self._base = _BASE_BYTES + _LETTER_BYTES * letters + _COMPILED_BYTES * burnt

    @property
    def num_bytes(self) -> int:
        """What it takes, with that."""
        return self._base + self.grown_bytes

    def touch(self) -> bool:
        """A token was taken; whether it is time to weigh it."""
        self._taken += 1
        return self._taken >= self._apart

    def weigh(self, matcher: LLMatcher) -> None:
        """See what it takes, if it may have grown.

        Args:
            matcher: one that uses it, and so knows.
        """
        # At the end of a process nobody needs to know, and half of what it takes is gone.
        if self._taken and not _GIVING.is_ending():
            self._taken = 0
            before = self.grown_bytes
            grown = _GROWN_BYTES * (_burnt_by(matcher) - self._burnt)
            self.grown_bytes = max(before, min(grown, self._most))
            is_growing = self.grown_bytes - before > _GROWTH_BYTES
            self._apart = _WEIGHED if is_growing else min(2 * self._apart, _WEIGHED_IDLE)

    def __del__(self) -> None:
        """Say so: malloc keeps what is freed."""
        _GIVING.add(self.num_bytes)


class _Giving:
    """Has malloc give back what it keeps for steps, which is not needed soon where it is so much.

    At once for all that goes at about the same time, and in a thread: it takes milliseconds.
    """

    def __init__(self) -> None:
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self.is_ending = sys.is_finalizing
        self._num_bytes = 0

    def add(self, num_bytes: int) -> None:
        """So much will be free in a moment."""
        self._num_bytes += num_bytes
        # A thread that is started at the end of a process never comes up.
        if self._num_bytes >= _GIVEN_BYTES and self._trim is not None and not self.is_ending():
            self._num_bytes = 0
            timer = threading.Timer(_REST_SECONDS, self._trim, (0,))
            timer.daemon = True
            timer.start()


_GIVING = _Giving()


def _burnt_by(matcher: LLMatcher) -> int:
    """The fuel that its expressions had burnt when it last looked.

    llguidance tells it in what it says of a token that it refuses, and nowhere else.
    """
    probe = matcher.deep_copy()
    probe.consume_token(_NOBODY)
    # The first: behind it stands the grammar, in which a client may write what it likes.
    told = _COST.search(probe.get_error())
    return 0 if told is None else int(told[1])
