"""Token embeddings as they are stored: 16-bit floats or codes, widened for the tokens of a step.

A table is read a few rows at a time, so its form costs a step next to nothing, and in float32 it
may take more memory than all matrices of a quantized model.
"""

from __future__ import annotations

from typing import Protocol

import torch

from gatewayd_engine.model.weights import dense
from gatewayd_hooks.quantization import GroupedWeight, StaticWeight, Weight

_NARROW = (torch.bfloat16, torch.float16)
_BLOCK = 1 << 20
"""Numbers that are narrowed at a time."""


class EmbeddingTable(Protocol):
    """Embeddings of all tokens.

    Attributes:
        dtype: of the rows that are looked up.
        device: of the table and of the ids.
    """

    dtype: torch.dtype
    device: torch.device

    @property
    def nbytes(self) -> int:
        """Size in bytes."""

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the embeddings of token ids ``[n]``, a new tensor ``[n, hidden]``."""


class FloatTable:
    """Table of floats.

    Args:
        table: shape ``[vocab, hidden]``.
        dtype: of looked-up rows, of at least the table's precision.

    Attributes:
        table: as given.
        dtype, device: see ``EmbeddingTable``.
    """

    __slots__ = ("device", "dtype", "table")

    def __init__(self, table: torch.Tensor, dtype: torch.dtype) -> None:
        self.table = table
        self.dtype = dtype
        self.device = table.device

    @property
    def nbytes(self) -> int:
        """See ``EmbeddingTable``."""
        return self.table.nbytes

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """See ``EmbeddingTable``."""
        rows = torch.embedding(self.table, ids)
        # A conversion to the same type copies nothing, but its call takes a microsecond.
        return rows if rows.dtype == self.dtype else rows.to(self.dtype)


class CodeTable:
    """Table of integer codes on a CPU, dequantized in float32 when rows are looked up.

    Args:
        weight: for which ``fits_code_table``.
        dtype: of looked-up rows.

    Attributes:
        dtype, device: see ``EmbeddingTable``.
    """

    __slots__ = ("_codes", "_offsets", "_scales", "_shape", "device", "dtype")

    def __init__(self, weight: GroupedWeight, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.device = weight.codes.device
        self._shape = (-1, weight.codes.shape[1])
        # numpy takes a third of torch's time for one row, which is most of what decoding looks up.
        groups = weight.scales.shape[1]
        self._codes = torch.unflatten(weight.codes, 1, (groups, -1)).numpy()
        self._scales = weight.scales.unsqueeze(-1).numpy()
        self._offsets = None if weight.offsets is None else weight.offsets.unsqueeze(-1).numpy()

    @property
    def nbytes(self) -> int:
        """See ``EmbeddingTable``."""
        offsets = 0 if self._offsets is None else self._offsets.nbytes
        return self._codes.nbytes + self._scales.nbytes + offsets

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """See ``EmbeddingTable``."""
        index = ids.numpy()
        # Multiplied, then added, as ``dense`` does.
        values = self._codes.take(index, 0).astype("float32")
        values *= self._scales.take(index, 0)
        if self._offsets is not None:
            values += self._offsets.take(index, 0)
        return torch.from_numpy(values.reshape(self._shape)).to(self.dtype)


def fits_code_table(weight: Weight) -> bool:
    """Whether a weight is of integer codes in groups of adjacent columns, on a CPU."""
    return (
        isinstance(weight, GroupedWeight)
        and weight.codes.device.type == "cpu"
        and weight.codes.dtype in (torch.uint8, torch.int8)
        and weight.group_of is None
    )


def embedding_table(weight: Weight, dtype: torch.dtype) -> EmbeddingTable:
    """Keep a table in the smallest form from which the same rows are read.

    On GPUs it is one of floats of ``dtype``: a captured step looks its rows up in one launch, and
    a tied head reads the same memory.

    Args:
        weight: shape ``[vocab, hidden]``.
        dtype: of looked-up rows.
    """
    if isinstance(weight, StaticWeight):
        weight = weight.weight
    if isinstance(weight, GroupedWeight) and fits_code_table(weight):
        return CodeTable(weight, dtype)
    table = dense(weight).to(dtype)
    if table.device.type == "cpu" and dtype not in _NARROW:
        table = _narrowed(table)
    return FloatTable(table, dtype)


def _narrowed(table: torch.Tensor) -> torch.Tensor:
    """Return a table in 16 bits if that is exact, else unchanged."""
    for dtype in _NARROW:
        narrow = torch.empty(table.shape, dtype=dtype)
        step = max(1, _BLOCK // table.shape[1])
        # In blocks, which end at the first that is not exact, and with small temporaries.
        blocks = zip(torch.split(narrow, step), torch.split(table, step), strict=True)
        if all(torch.equal(into.copy_(block).to(table.dtype), block) for into, block in blocks):
            return narrow
    return table
