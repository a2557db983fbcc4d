"""Workspace sizes of FlashInfer's wrappers. Does not import FlashInfer."""

from __future__ import annotations

FLOATS = 384 << 20
"""Bytes for partial results of split contexts: enough for 1,024 sequences of 64 heads."""
INTS = 8 << 20
"""Bytes of a plan, FlashInfer's default for each wrapper."""


def device_bytes(num_windows: int) -> int:
    """Return the device memory of all wrappers of a model, in bytes.

    Each window has plans for decoding, for paged and for ragged chunks, and for captured steps;
    shared prefixes have two, and the cached part of chunks one. A wrapper for a capture allocates
    one temporarily.

    Args:
        num_windows: number of distinct windows of the model's layers.
    """
    return FLOATS + (4 * num_windows + 2 + 1 + 1) * INTS
