"""Counters of an engine, sent with each step; imports no torch."""

from __future__ import annotations

import msgspec

STEP_SIZES = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Upper bounds of the histogram of tokens per step."""


class EngineStats(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """State after a step; totals count from the engine's start."""

    step: int = 0
    num_running: int = 0
    num_waiting: int = 0
    free_pages: int = 0
    cached_pages: int = 0
    held_pages: int = 0
    preemptions: int = 0
    prefix_queries: int = 0
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: int = 0
    """Prompt tokens found there."""
    computed_tokens: int = 0
    step_tokens: int = 0
    step_seconds: float = 0.0
    faults: int = 0
    """Strategy faults answered by the default."""
    num_deferred: int = 0
    """Of the waiting, those that wait for a sibling to compute their prompt."""
    step_sizes: list[int] = []
    """Steps that computed tokens, by how many: up to each of ``STEP_SIZES``, then more."""
    num_drafts: int = 0
    """Times that a sequence had drafts in a step."""
    draft_tokens: int = 0
    accepted_tokens: int = 0
    """Drafts that were kept."""
    accepted_at: list[int] = []
    """Of those, how many as the first, second, ... of their step."""
    swaps: int = 0
    """Of the preemptions, those that copied what was computed to host memory."""
    tier_hits: dict[str, int] = {}
    """Of ``prefix_hits``, those in a KV tier, by its name."""
    num_held: int = 0
    """Of the waiting, those that an operator holds."""
    busy_seconds: float = 0.0
    """In which steps were computed."""
    evictions: int = 0
    """Cached pages that were given up for others."""
    compactions: int = 0
    """Prompts of which few keys and values are left."""
    compacted_pages: int = 0
    """Pages that those have given back, less the ones that they took."""
