"""What a sequence's time at an engine is spent on; the numbers are what the wire carries."""

from __future__ import annotations

from enum import IntEnum


class Cause(IntEnum):
    """What a sequence does, or what it waits for. It is one of them at every moment."""

    TURN = 0
    """Its turn: the tokens of the steps went to others, or the scheduler holds it back."""
    ROWS = 1
    """A free row of the batch."""
    PAGES = 2
    """Free pages of the KV pool."""
    LEADER = 3
    """Another one computes the beginning that both share."""
    TIER = 4
    """A KV tier brings its pages."""
    GRAMMAR = 5
    """What it must follow is compiled."""
    PREEMPTED = 6
    """It had to give way, and waits again."""
    PREFILL = 7
    """Its prompt is computed."""
    RECOMPUTE = 8
    """What it lost when it had to give way is computed again."""
    DECODE = 9
    """Its tokens are generated."""
    KV_QUOTA = 10
    """Pages that its tenant may have: it holds all, or others' cached ones are kept for them."""
    HELD = 11
    """An operator holds it."""
