"""Memory that FlashInfer's wrappers work in. Imports no FlashInfer."""

from __future__ import annotations

FLOATS = 384 << 20
"""Bytes for partial results of split contexts: enough for 1,024 lines of 64 heads."""
INTS = 8 << 20
"""Bytes of a plan, the size that FlashInfer gives each wrapper."""


def device_bytes(num_windows: int) -> int:
    """Bytes that all wrappers of a model take of the device.

    Each window has plans for decoding, for chunks by pages and in one piece, and for captured
    steps; shared prefixes have two, and what chunks have cached one. A wrapper for a capture brings
    one that it does not keep.

    Args:
        num_windows: different ones that its layers have.
    """
    return FLOATS + (4 * num_windows + 2 + 1 + 1) * INTS
