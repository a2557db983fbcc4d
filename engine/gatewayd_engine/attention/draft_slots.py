"""Attention of sequences with drafts: padded slots, paged contexts, tree masks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gatewayd_engine.attention.append import Append
from gatewayd_engine.kernels.attention.splits import (
    most_rows,
    num_multiprocessors,
    num_splits,
    row_tile,
    scratch_size,
)
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.model.attention_api import RotatingAttend
from gatewayd_engine.model.attention_shape import AttentionShape

if TYPE_CHECKING:
    from gatewayd_engine.attention.step_inputs import SlotInputs
    from gatewayd_engine.kernels.base import Kernels

_SPLITS = (1, 4, 16)
"""Possible KV splits of a context: attention is compiled for each."""


class SlotAttention:
    """Attention over the KV pool by ``Kernels.decode_attention``, which needs no planning.

    Args:
        shape: attention shape of the model.
        pool: KV pool.
        append: applies rotary embedding and appends keys and values to the pool.
        kernels: kernels of the device.
        max_len: tokens of the longest context.
        sinks: see ``device_attention``.
    """

    def __init__(
        self,
        shape: AttentionShape,
        pool: KvPool,
        append: Append,
        kernels: Kernels,
        max_len: int,
        sinks: Sequence[torch.Tensor] | None = None,
    ) -> None:
        self.shape = shape
        self.pool = pool
        self.append = append
        self.kernels = kernels
        self.sinks = sinks
        # Views are created once, not in every call of a layer.
        self.layers = list(pool.data.unbind(1))
        self._max_len = max_len
        self._most_rows = most_rows(shape.head_dim, pool.dtype, pool.data.device)

    def allocate_output(self, num_tokens: int) -> torch.Tensor:
        """Allocate the output of a layer, ``[num_tokens, num_heads, out_dim]``."""
        size = (num_tokens, self.shape.num_heads, self.shape.out_dim)
        return torch.empty(size, dtype=self.pool.dtype, device=self.pool.data.device)

    def splits(self, lines: int, width: int) -> int:
        """Return the KV splits that occupy the device with ``lines`` sequences."""
        shape = self.shape
        rows = width * (shape.num_heads // shape.num_kv_heads)
        # Programs of a launch without splits: sequences, tiles of queries times heads, KV heads.
        programs = lines * -(-rows // row_tile(rows, self._most_rows)) * shape.num_kv_heads
        most = num_splits(programs, self._max_len, num_multiprocessors(self.pool.data.device))
        return max(parts for parts in _SPLITS if parts <= most)

    def scratch(self, sizes: Iterable[tuple[int, int]]) -> torch.Tensor:
        """Allocate scratch for partial results, for steps of any of these (sequences, width)."""
        shape = self.shape
        needed = [
            scratch_size(lines * width, shape.num_heads, shape.out_dim, splits)
            for lines, width in sizes
            if (splits := self.splits(lines, width)) > 1
        ]
        return torch.empty(max(needed, default=0), device=self.pool.data.device)

    def attend(
        self, inputs: SlotInputs, out: torch.Tensor, scratch: torch.Tensor
    ) -> RotatingAttend:
        """Return the attention of a step.

        Args:
            inputs: inputs of the step.
            out: output of each layer, shape ``[slots, num_heads, head_dim]``.
            scratch: of ``scratch``, for at least as many sequences and slots.
        """
        return _Slots(self, inputs, out, scratch)


class _Slots(RotatingAttend):
    """Attention of the layers of one step."""

    __slots__ = ("_inputs", "_of", "_out", "_scratch", "_splits")

    def __init__(
        self, of: SlotAttention, inputs: SlotInputs, out: torch.Tensor, scratch: torch.Tensor
    ) -> None:
        self._splits = of.splits(len(inputs.rows), inputs.width)
        self._scratch = scratch if self._splits > 1 else None
        self._of = of
        self._inputs = inputs
        self._out = out

    def __call__(self, layer: int, heads: torch.Tensor) -> torch.Tensor:
        """See ``RotatingAttend``."""
        of, inputs, shape = self._of, self._inputs, self._of.shape
        step = inputs.step
        of.kernels.decode_attention(
            # Keys of all slots are appended before any slot attends, as slots attend to each other.
            of.append(layer, heads, step),
            of.layers[layer],
            step.page_indptr,
            step.pages,
            step.last_page_len,
            self._out,
            scale=shape.scale,
            softcap=shape.softcap,
            window=shape.windows[layer],
            sinks=None if of.sinks is None else of.sinks[layer],
            width=inputs.width,
            num_queries=inputs.counts,
            ancestors=inputs.ancestors,
            splits=self._splits,
            scratch=self._scratch,
            chunked=shape.chunked,
        )
        return self._out.flatten(1)


@dataclass(slots=True, eq=False, repr=False)
class MixedAttend(RotatingAttend):
    """Attention of a step in two parts, each by its own implementation.

    Args:
        first: attention of the first tokens.
        rest: attention of the remaining tokens.
        num_first: number of tokens of the first part.
        out: output of both, concatenated, shape ``[num_tokens, heads, head_dim]``.
    """

    _first: RotatingAttend
    _rest: RotatingAttend
    _num_first: int
    _out: torch.Tensor

    def __call__(self, layer: int, heads: torch.Tensor) -> torch.Tensor:
        """See ``RotatingAttend``."""
        self._first(layer, heads[: self._num_first])
        self._rest(layer, heads[self._num_first :])
        return self._out.flatten(1)
