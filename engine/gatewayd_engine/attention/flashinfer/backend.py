"""FlashInfer attention backend, with separate kernels for decoding sequences and prefill chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from gatewayd_engine.attention.append import Append
from gatewayd_engine.attention.flashinfer.calls import LayerRun, PlannedCalls
from gatewayd_engine.attention.flashinfer.ragged import RaggedChunks
from gatewayd_engine.attention.flashinfer.wrappers import Wrappers
from gatewayd_engine.attention.gpu_api import CapturedAttention
from gatewayd_engine.attention.sinks import SinkScaling
from gatewayd_engine.attention.step_inputs import HostPlan, StepInputs
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.model.attention_api import RotatingAttend
from gatewayd_engine.model.attention_shape import AttentionShape

_HOPPER = 9
_FA3_HEAD_DIM = 128
"""Head dimension for which FlashAttention 3 is faster: 447 us on an H200 instead of 612 with
FlashAttention 2, for four chunks of 2,048 tokens. Others have not been measured."""


@dataclass(frozen=True, slots=True)
class AttentionPart:
    """Tokens of a step that attend in one launch.

    Attributes:
        num_tokens: number of tokens, after those of the previous part.
        runs: planned attention, per window.
        needs_keys: whether it requires keys to be rotated in place.
    """

    num_tokens: int
    runs: Mapping[int, LayerRun]
    needs_keys: bool = False


class FlashAttention:
    """FlashInfer implementation of ``CapturingAttention``.

    Args:
        shape: attention shape of the model.
        pool: KV pool.
        append: applies rotary embedding and appends keys and values to the pool.
        sinks: scales outputs by the heads' attention sinks; None for a model without.
    """

    least_saved: int | None = None

    def __init__(
        self, shape: AttentionShape, pool: KvPool, append: Append, sinks: SinkScaling | None = None
    ) -> None:
        self._shape = shape
        self._pool = pool
        self._append = append
        self._sinks = sinks
        self._wrappers = Wrappers(shape, pool)
        self._backend = prefill_backend(shape, pool)
        windows = self._wrappers.windows
        self._decode = {window: PlannedCalls(self._wrappers.decode()) for window in windows}
        self._prefill = {
            window: PlannedCalls(self._wrappers.prefill(self._backend)) for window in windows
        }
        # FlashAttention 3 reads contiguous keys at twice the speed of paged ones.
        self._ragged = (
            RaggedChunks(shape, pool.page_size, self._wrappers) if self._backend == "fa3" else None
        )

    def eager(self, inputs: StepInputs, out: torch.Tensor | None = None) -> RotatingAttend:
        """See ``DeviceAttention``."""
        host = inputs.host
        parts = [self._plan_decode(inputs)] if host.num_decode else []
        if host.num_decode < host.num_lines:
            parts.append(self._plan_chunks(inputs))
        return _Step(
            *(self._shape, self._pool, self._wrappers, self._append, self._sinks),
            *(inputs, parts, out),
        )

    def captured(self, inputs: StepInputs) -> list[CapturedAttention]:
        """See ``CapturingAttention``."""
        return [
            _Captured(*(self._shape, self._pool, self._wrappers, self._append, self._sinks), inputs)
        ]

    def _plan_decode(self, inputs: StepInputs) -> AttentionPart:
        host, n = inputs.host, inputs.host.num_decode
        for window, calls in self._decode.items():
            self._wrappers.plan_decode(
                calls.wrapper,
                window,
                host.page_indptr[: n + 1],
                inputs.pages,
                host.last_page_len[:n],
            )
        return AttentionPart(n, _planned(self._decode))

    def _plan_chunks(self, inputs: StepInputs) -> AttentionPart:
        host, n = inputs.host, inputs.host.num_decode
        ragged = self._ragged.plan(inputs) if self._ragged is not None else None
        if ragged is not None:
            return AttentionPart(len(inputs.ids) - n, ragged, needs_keys=True)
        # Relative to the first chunk's first token, as the wrapper gets no other queries.
        query_indptr = host.query_indptr[n:] - n
        for window, calls in self._prefill.items():
            self._wrappers.plan_prefill(
                calls.wrapper,
                window,
                query_indptr,
                host.page_indptr[n:],
                inputs.pages,
                host.last_page_len[n:],
            )
        return AttentionPart(len(inputs.ids) - n, _planned(self._prefill))


class _Step(RotatingAttend):
    """Attention of the layers of one step."""

    __slots__ = (
        "_append",
        "_flat",
        "_inputs",
        "_keeps_keys",
        "_layers",
        "_lse",
        "_out",
        "_parts",
        "_sinks",
        "_sizes",
        "_windows",
    )

    def __init__(
        self,
        shape: AttentionShape,
        pool: KvPool,
        wrappers: Wrappers,
        append: Append,
        sinks: SinkScaling | None,
        inputs: StepInputs,
        parts: Sequence[AttentionPart],
        out: torch.Tensor | None = None,
    ) -> None:
        self._windows = shape.windows
        self._layers = wrappers.layers
        self._append = append
        self._inputs = inputs
        self._sizes = [part.num_tokens for part in parts]
        self._keeps_keys = any(part.needs_keys for part in parts)
        if out is None:
            # Shared by all layers: each layer's output is consumed before the next attends.
            size = (len(inputs.ids), shape.num_heads, shape.head_dim)
            out = torch.empty(size, dtype=pool.dtype, device=pool.data.device)
        self._sinks = sinks
        self._out = out
        self._flat = out.flatten(1)
        outs = out.split_with_sizes(self._sizes)
        sums: Sequence[torch.Tensor | None] = [None] * len(parts)
        if sinks is not None:
            self._lse = torch.empty(out.shape[:2], dtype=torch.float32, device=out.device)
            sums = self._lse.split_with_sizes(self._sizes)
        self._parts = [(part.runs, o, lse) for part, o, lse in zip(parts, outs, sums, strict=True)]

    def __call__(self, layer: int, heads: torch.Tensor) -> torch.Tensor:
        """See ``RotatingAttend``."""
        query = self._append(layer, heads, self._inputs, keeps_keys=self._keeps_keys)
        return self.attended(layer, query)

    def attended(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """See ``CapturedAttention``."""
        queries = query.split_with_sizes(self._sizes)
        window, kv = self._windows[layer], self._layers[layer]
        for q, (runs, out, lse) in zip(queries, self._parts, strict=True):
            if lse is None:
                runs[window].run(q, kv, out=out)
            else:
                runs[window].run(q, kv, out=out, lse=lse, return_lse=True)
        if self._sinks is not None:
            self._sinks(layer, self._out, self._lse)
        return self._flat


class _Captured(_Step, CapturedAttention):
    """Attention of captured decode steps of one size, always over the same tensors."""

    __slots__ = ("_pool", "_runs", "_wrappers")

    def __init__(
        self,
        shape: AttentionShape,
        pool: KvPool,
        wrappers: Wrappers,
        append: Append,
        sinks: SinkScaling | None,
        inputs: StepInputs,
    ) -> None:
        self._pool = pool
        self._wrappers = wrappers
        self._runs = {window: wrappers.captured(inputs, window) for window in wrappers.windows}
        parts = [AttentionPart(len(inputs.ids), self._runs)]
        super().__init__(shape, pool, wrappers, append, sinks, inputs, parts)

    def plan(self, host: HostPlan) -> None:
        """See ``CapturedAttention``."""
        if self._pool.transfers.pending:
            # A graph cannot wait layer by layer: all loads must be complete before it starts.
            self._pool.transfers.wait()
        for window, wrapper in self._runs.items():
            self._wrappers.plan_replay(
                wrapper, window, host.page_indptr, self._inputs.pages, host.last_page_len
            )


def _planned(calls: Mapping[int, PlannedCalls]) -> dict[int, LayerRun]:
    return {window: of_window.planned() for window, of_window in calls.items()}


def prefill_backend(shape: AttentionShape, pool: KvPool) -> str:
    """Choose FlashInfer's prefill backend, as its automatic choice may differ between plans."""
    is_hopper = (
        pool.data.is_cuda and torch.cuda.get_device_capability(pool.data.device)[0] == _HOPPER
    )
    # FlashAttention 3 requires queries and keys of the same dtype.
    suits = shape.head_dim == _FA3_HEAD_DIM and pool.data.dtype == pool.dtype
    return "fa3" if is_hopper and suits else "fa2"
