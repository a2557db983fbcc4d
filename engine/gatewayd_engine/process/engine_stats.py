"""Counters of an engine, sent with each step; imports no torch."""

from __future__ import annotations

import msgspec

STEP_SIZES = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Upper bounds of the histogram of tokens per step."""


class EngineStats(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Statistics after a step; totals count from the engine's start."""

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
    """Prompt tokens found in the prefix cache or a KV tier."""
    computed_tokens: int = 0
    step_tokens: int = 0
    step_seconds: float = 0.0
    faults: int = 0
    """Strategy faults after which the default took over."""
    num_deferred: int = 0
    """Waiting sequences that wait for a sibling to compute their prompt."""
    step_sizes: list[int] = []
    """Non-empty steps by number of tokens: up to each of ``STEP_SIZES``, then more."""
    num_drafts: int = 0
    """Number of verifications: decoding sequences with drafts, summed over steps."""
    draft_tokens: int = 0
    accepted_tokens: int = 0
    """Draft tokens that were accepted."""
    accepted_at: list[int] = []
    """Accepted draft tokens by their position in the draft."""
    swaps: int = 0
    """Preemptions that copied the computed pages to host memory."""
    tier_hits: dict[str, int] = {}
    """Part of ``prefix_hits`` found in each KV tier, by name."""
    num_held: int = 0
    """Waiting sequences that an operator holds."""
    busy_seconds: float = 0.0
    """Total time in which steps were computed."""
    evictions: int = 0
    """Cached pages that were evicted."""
    compactions: int = 0
    """Prompts that were compacted."""
    compacted_pages: int = 0
    """Pages released by compactions, less those allocated for them."""
