"""Batch invariance: results of a row that do not depend on the rest of the batch, bit for bit.

A matrix product that quantizes its input amplifies rounding differences: a value halfway between
two codes may be rounded either way. In a model with such products every float operation before
them runs in its batch-invariant form, which gives a row the same bits whatever the batch and the
number of threads.
"""

from __future__ import annotations

import torch

_SINGLE_THREAD_ELEMENTS = 1 << 14
"""Elements up to which torch 2.13 uses one thread for any operation. Beyond that it splits the work
between threads, also within a row, and the tail of a vector register at the split is computed by
other instructions, which differ in the last bit."""


class BatchInvariantMode:
    """Base of operations with an optional, slower batch-invariant form.

    Attributes:
        is_steady: whether the batch-invariant form is used; False at first.
    """

    __slots__ = ("is_steady",)

    def __init__(self) -> None:
        self.is_steady = False


def row_chunks(*tensors: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
    """Split tensors along dimension 0 into chunks that torch computes on a single thread.

    Args:
        tensors: with the same number of rows; the chunk size follows from the row size of the
            first.
    """
    first = tensors[0]
    rows = max(1, _SINGLE_THREAD_ELEMENTS * len(first) // max(1, first.numel()))
    return list(zip(*(torch.split(tensor, rows) for tensor in tensors), strict=True))
