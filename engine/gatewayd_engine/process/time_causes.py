"""Causes of a sequence's time in an engine; the numbers are part of the wire format."""

from __future__ import annotations

from enum import IntEnum


class Cause(IntEnum):
    """Current activity of a sequence, or what it waits for; exactly one at any time."""

    TURN = 0
    """Scheduling: the steps' tokens went to others, or the scheduler holds it back."""
    ROWS = 1
    """A free batch row."""
    PAGES = 2
    """Free pages of the KV pool."""
    LEADER = 3
    """Another sequence that computes their shared prefix."""
    TIER = 4
    """A KV tier that is loading its pages."""
    GRAMMAR = 5
    """Compilation of its grammar."""
    PREEMPTED = 6
    """It was preempted, and waits again."""
    PREFILL = 7
    """Its prompt is being prefilled."""
    RECOMPUTE = 8
    """Tokens lost by a preemption are being recomputed."""
    DECODE = 9
    """Its tokens are being generated."""
    KV_QUOTA = 10
    """Its tenant's quota: it is at the ceiling, or cached pages are reserved for others."""
    HELD = 11
    """It is held by an operator."""
