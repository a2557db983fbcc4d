"""FlashInfer attention of models whose layers attend within chunks, such as Llama 4.

FlashInfer has sliding windows alone. But within its chunk a token attends as if the context began
there, so layers with chunks are planned with each chunk of a context as a sequence of its own.
Chunks before the step's tokens have no query, so that block tables need not be copied.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch

from gatewayd_engine.attention.append import Append
from gatewayd_engine.attention.flashinfer.backend import AttentionPart, FlashAttention
from gatewayd_engine.attention.flashinfer.calls import LayerRun, PlannedCalls
from gatewayd_engine.attention.gpu_api import CapturedAttention
from gatewayd_engine.attention.sinks import SinkScaling
from gatewayd_engine.attention.step_inputs import HostPlan, StepInputs
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.model.attention_shape import AttentionShape


class ChunkedAttention(FlashAttention):
    """``FlashAttention`` with layers that attend within chunks, in eager steps.

    Args:
        shape: attention shape of the model, whose chunks are multiples of a page.
        pool: KV pool.
        append: applies rotary embedding and appends keys and values to the pool.
        sinks: see ``FlashAttention``.
    """

    def __init__(
        self, shape: AttentionShape, pool: KvPool, append: Append, sinks: SinkScaling | None = None
    ) -> None:
        super().__init__(shape, pool, append, sinks)
        self._page_size = pool.page_size
        chunks = sorted({*shape.windows} - {0})
        # Of both parts of a step: decoding sequences, then prefill chunks; with the backends that
        # layers without chunks have for them.
        self._of_parts = [
            {chunk: PlannedCalls(self._wrappers.prefill(backend)) for chunk in chunks}
            for backend in ("fa2", self._backend)
        ]

    def captured(self, inputs: StepInputs) -> list[CapturedAttention]:
        """Return nothing: a captured plan has a fixed number of sequences."""
        return []

    def _plan_decode(self, inputs: StepInputs) -> AttentionPart:
        part, n = super()._plan_decode(inputs), inputs.host.num_decode
        return replace(part, runs={**part.runs, **self._plan_by_chunk(0, inputs, 0, n)})

    def _plan_chunks(self, inputs: StepInputs) -> AttentionPart:
        part, host = super()._plan_chunks(inputs), inputs.host
        runs = self._plan_by_chunk(1, inputs, host.num_decode, host.num_lines)
        return replace(part, runs={**part.runs, **runs})

    def _plan_by_chunk(
        self, part: int, inputs: StepInputs, first: int, end: int
    ) -> dict[int, LayerRun]:
        """Plan sequences ``first`` to ``end``, for the layers of each chunk length."""
        for chunk, calls in self._of_parts[part].items():
            by_chunk = split_at_chunks(inputs.host, first, end, chunk, self._page_size)
            self._wrappers.plan_prefill(
                calls.wrapper,
                0,
                by_chunk.query_indptr,
                by_chunk.page_indptr,
                inputs.pages,
                by_chunk.last_page_len,
            )
        return {chunk: calls.planned() for chunk, calls in self._of_parts[part].items()}


class ContextChunks(NamedTuple):
    """Chunks of contexts as sequences, one context after another; see ``HostPlan``.

    Attributes:
        query_indptr: where each chunk's tokens of this step begin, counted from the first.
        page_indptr: where each chunk's pages begin.
        last_page_len: tokens in each chunk's last page.
    """

    query_indptr: torch.Tensor
    page_indptr: torch.Tensor
    last_page_len: torch.Tensor


def split_at_chunks(
    host: HostPlan, first: int, end: int, chunk: int, page_size: int
) -> ContextChunks:
    """Split the contexts of sequences ``first`` to ``end`` where chunks begin.

    Args:
        host: plan of the step.
        first: first sequence.
        end: end of the sequences, exclusive.
        chunk: positions of a chunk, a multiple of ``page_size``.
        page_size: tokens per page.
    """
    begins = host.page_indptr[first : end + 1]
    lengths = (begins.diff() - 1) * page_size + host.last_page_len[first:end]
    starts = lengths - host.query_indptr[first : end + 1].diff()
    num_chunks = (lengths + chunk - 1) // chunk
    line = torch.repeat_interleave(torch.arange(end - first), num_chunks)
    # Position at which each chunk begins, by its index in its context.
    begin = (torch.arange(len(line)) - (num_chunks.cumsum(0) - num_chunks)[line]) * chunk
    stop = torch.minimum(begin + chunk, lengths[line])
    counts = (stop - torch.maximum(begin, starts[line])).clamp_min(0)
    query_indptr = torch.zeros(len(line) + 1, dtype=torch.int32)
    torch.cumsum(counts, 0, out=query_indptr[1:])
    page_indptr = torch.cat((begins[line] + begin // page_size, begins[-1:])).int()
    return ContextChunks(query_indptr, page_indptr, ((stop - 1) % page_size + 1).int())
