"""Captured decode steps by the decode attention of our own kernels.

Nothing is planned: the kernels read lengths and pages on the device. So it needs no library, and
the host does nothing for attention between two replays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gatewayd_engine.attention.append import Append
from gatewayd_engine.attention.base import AttentionShape
from gatewayd_engine.attention.device import (
    CapturedAttention,
    DeviceAttention,
    RotatingAttend,
)
from gatewayd_engine.device.inputs import HostPlan, StepInputs
from gatewayd_engine.kernels.splits import (
    PROGRAMS_EACH,
    num_multiprocessors,
    num_splits,
    row_tile,
    scratch_size,
)
from gatewayd_engine.kv.pool import KvPool

if TYPE_CHECKING:
    from gatewayd_engine.kernels.base import Kernels


class DecodeKernels:
    """Our decode attention for one model.

    Args:
        shape: the model's attention.
        pool: where keys and values are.
        append: rotates, and writes keys and values to the pool.
        kernels: of the device.
        max_len: tokens that a sequence may reach.
    """

    def __init__(
        self,
        shape: AttentionShape,
        pool: KvPool,
        append: Append,
        kernels: Kernels,
        max_len: int,
    ) -> None:
        self.shape = shape
        self.pool = pool
        self.append = append
        self._kernels = kernels
        self._max_len = max_len
        self._layers = list(pool.data.unbind(1))
        self._multiprocessors = num_multiprocessors(pool.data.device)
        # Contexts are split as long as that makes no more programs than the device runs.
        group = shape.num_heads // shape.num_kv_heads
        most = scratch_size(PROGRAMS_EACH * self._multiprocessors, group, shape.head_dim, 1)
        self._scratch = torch.empty(most, dtype=torch.float32, device=pool.data.device)

    def captured(self, inputs: StepInputs) -> CapturedDecode:
        """Attention of captured steps over these tensors."""
        return CapturedDecode(self, inputs)

    def splits(self, num_lines: int, window: int) -> int:
        """Into how many parts contexts are split at most, in steps of so many lines."""
        shape = self.shape
        group = shape.num_heads // shape.num_kv_heads
        tiles = -(-group // row_tile(group))
        programs = num_lines * shape.num_kv_heads * tiles
        longest = min(window, self._max_len) if window else self._max_len
        return num_splits(programs, longest, self._multiprocessors)

    def attend(
        self, layer: int, query: torch.Tensor, inputs: StepInputs, splits: int, out: torch.Tensor
    ) -> None:
        """Attend one query of each line ``[lines, num_heads, head_dim]``, and write to ``out``."""
        shape = self.shape
        self._kernels.decode_attention(
            query,
            self._layers[layer],
            inputs.page_indptr,
            inputs.pages,
            inputs.last_page_len,
            out,
            scale=shape.scale,
            softcap=shape.softcap,
            window=shape.windows[layer],
            sinks=None,
            width=1,
            num_queries=None,
            ancestors=None,
            splits=splits,
            scratch=self._scratch if splits > 1 else None,
        )


class CapturedDecode(CapturedAttention):
    """The layers of decode steps of one size, over the same tensors each time.

    Args:
        of: the model's.
        inputs: the tensors.
    """

    __slots__ = ("_flat", "_inputs", "_of", "_out", "_splits")

    def __init__(self, of: DecodeKernels, inputs: StepInputs) -> None:
        self._of = of
        self._inputs = inputs
        shape, num_lines = of.shape, len(inputs.ids)
        self._splits = {window: of.splits(num_lines, window) for window in shape.windows}
        size = (num_lines, shape.num_heads, shape.head_dim)
        self._out = torch.empty(size, dtype=of.pool.dtype, device=of.pool.data.device)
        self._flat = self._out.flatten(1)

    def __call__(self, layer: int, heads: torch.Tensor) -> torch.Tensor:
        """See ``RotatingAttend``."""
        of, inputs = self._of, self._inputs
        return self.attended(layer, of.append(layer, heads, inputs))

    def attended(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """What queries ``[lines, num_heads, head_dim]`` see of keys that are in the pool."""
        splits = self._splits[self._of.shape.windows[layer]]
        self._of.attend(layer, query, self._inputs, splits, self._out)
        return self._flat

    def plan(self, host: HostPlan) -> None:
        """See ``CapturedAttention``."""
        if self._of.pool.arrivals.pending:
            # A graph waits for no layer: all of them must be there before it starts.
            self._of.pool.arrivals.wait()


class DecodeAttention:
    """Attends captured decode steps by our kernels, and all others by another attention.

    Args:
        kernels: of the model.
        other: for steps with prompts.
    """

    def __init__(self, kernels: DecodeKernels, other: DeviceAttention) -> None:
        self._kernels = kernels
        self._other = other

    @property
    def least_saved(self) -> int | None:
        """See ``DeviceAttention``."""
        return self._other.least_saved

    def eager(self, inputs: StepInputs, out: torch.Tensor | None = None) -> RotatingAttend:
        """See ``DeviceAttention``."""
        return self._other.eager(inputs, out)

    def captured(self, inputs: StepInputs) -> list[CapturedAttention]:
        """See ``CapturingAttention``."""
        return [self._kernels.captured(inputs)]
