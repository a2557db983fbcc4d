"""Attention of prompts over keys and values of the step itself, by FlashInfer's ragged kernels.

FlashAttention 3 loads keys that lie in one piece by TMA, and those of pages by gathers, at half of
its speed: 307 TFLOP/s were measured on an H200. What a chunk of a prompt attends to is in one piece
as far as the step computes it. What was computed before is in pages: it is attended to apart, and
the two are merged by their weights. Sources: FlashAttention-3 (Shah et al., arXiv 2407.08608);
merging as in cascade inference (FlashInfer, Ye et al., arXiv 2501.01005, section 3.1).
"""

from __future__ import annotations

import torch
from flashinfer import (
    BatchPrefillWithPagedKVCacheWrapper,
    BatchPrefillWithRaggedKVCacheWrapper,
    merge_state_in_place,
)

from gatewayd_engine.attention.flashinfer.calls import KeysValues, LayerRun, PlannedCalls
from gatewayd_engine.attention.flashinfer.wrappers import Wrappers
from gatewayd_engine.attention.step_inputs import StepInputs
from gatewayd_engine.model.attention_shape import AttentionShape

LEAST_MERGED = 1024
"""Mean length of chunks, weighted by length, from which merging pays. By arithmetic, not measured:
at twice the speed, a layer of Llama 3.1 8B takes 0.013 ns * n less for each token of a chunk of n.
Merging moves 32 kB for each, which takes 8 ns, and launches two kernels more."""


class RaggedChunks:
    """Plans the chunks of steps.

    Args:
        shape: the model's attention.
        page_size: tokens per page.
        wrappers: makes and plans FlashInfer's.
        least_merged: see ``LEAST_MERGED``.
    """

    def __init__(
        self,
        shape: AttentionShape,
        page_size: int,
        wrappers: Wrappers,
        least_merged: int = LEAST_MERGED,
    ) -> None:
        self._kv_heads = shape.num_kv_heads
        self._page_size = page_size
        self._wrappers = wrappers
        self._least_merged = least_merged
        self._own = {window: wrappers.ragged() for window in wrappers.windows}
        self._calls = {window: PlannedCalls(own, "ragged_run") for window, own in self._own.items()}
        # A window counts from the end of a context, which a part of it does not know.
        self._cached = wrappers.prefill("fa3") if wrappers.windows == [0] else None

    def plan(self, inputs: StepInputs) -> dict[int, LayerRun] | None:
        """Plan the chunks of a step, whose keys are rotated in place.

        Returns:
            What attends, per window; None if reading all from pages is faster, or all that can be.
        """
        host, n = inputs.host, inputs.host.num_decode
        query_indptr = host.query_indptr[n:] - n
        counts, num_pages = query_indptr.diff(), host.page_indptr[n:].diff()
        cached = (num_pages - 1) * self._page_size + host.last_page_len[n:] - counts
        merges = bool(cached.any())
        if merges and not self._pays(counts.long()):
            return None
        for window, own in self._own.items():
            self._wrappers.plan_ragged(own, window, query_indptr)
        if merges and self._cached is not None:
            self._plan_cached(self._cached, inputs, query_indptr, cached)
            return {0: _Merged(self._own[0], self._cached, self._kv_heads)}
        return {
            window: _Own(calls.planned(), self._kv_heads) for window, calls in self._calls.items()
        }

    def _pays(self, counts: torch.Tensor) -> bool:
        """Whether chunks of so many tokens, int64 ``[n]``, are worth merging."""
        squares = int((counts * counts).sum())
        return self._cached is not None and squares >= self._least_merged * int(counts.sum())

    def _plan_cached(
        self,
        wrapper: BatchPrefillWithPagedKVCacheWrapper,
        inputs: StepInputs,
        query_indptr: torch.Tensor,
        cached: torch.Tensor,
    ) -> None:
        """Plan the first ``cached`` tokens of each line, shape ``[n]``, for all of its queries."""
        size, begins = self._page_size, inputs.host.page_indptr[inputs.host.num_decode :]
        full = (cached + size - 1) // size
        # Behind each line stands one that has the rest of its pages and no query: so the pages need
        # not be gathered anew without those.
        page_indptr = torch.empty(2 * len(cached) + 1, dtype=torch.int32)
        page_indptr[0::2] = begins
        page_indptr[1::2] = begins[:-1] + full
        queries = torch.empty_like(page_indptr)
        queries[0::2] = query_indptr
        queries[1::2] = query_indptr[1:]
        last_page_len = torch.empty(2 * len(cached), dtype=torch.int32)
        last_page_len[0::2] = cached - (full - 1).clamp_min(0) * size
        last_page_len[1::2] = torch.where(page_indptr[2::2] > page_indptr[1::2], size, 0)
        self._wrappers.plan_prefill(
            wrapper, 0, queries, page_indptr, inputs.pages, last_page_len, causal=False
        )


class _Own:
    """Attends to what the step itself computes."""

    __slots__ = ("_kv_heads", "_run")

    def __init__(self, run: LayerRun, kv_heads: int) -> None:
        self._run = run
        self._kv_heads = kv_heads

    def run(self, q: torch.Tensor, paged_kv_cache: KeysValues, *, out: torch.Tensor) -> None:
        """See ``LayerRun``."""
        self._run.run(q, _behind(q, self._kv_heads), out=out)


class _Merged:
    """Attends to what the step itself computes and to what was computed before, and merges both."""

    __slots__ = ("_cached", "_kv_heads", "_own")

    def __init__(
        self,
        own: BatchPrefillWithRaggedKVCacheWrapper,
        cached: BatchPrefillWithPagedKVCacheWrapper,
        kv_heads: int,
    ) -> None:
        self._own = own
        self._cached = cached
        self._kv_heads = kv_heads

    def run(self, q: torch.Tensor, paged_kv_cache: KeysValues, *, out: torch.Tensor) -> None:
        """See ``LayerRun``."""
        keys, values = _behind(q, self._kv_heads)
        _, weight = self._own.run(q, keys, values, out=out, return_lse=True)
        cached, cached_weight = self._cached.run(q, paged_kv_cache, return_lse=True)
        merge_state_in_place(out, weight, cached, cached_weight)


def _behind(q: torch.Tensor, kv_heads: int) -> KeysValues:
    """Keys and values that lie behind queries, each ``[tokens, kv_heads, head_dim]``."""
    tokens, heads, dim = q.shape
    first = q.storage_offset() + heads * q.stride(1)
    size = (tokens, kv_heads, dim)
    keys = q.as_strided(size, q.stride(), first)
    return keys, q.as_strided(size, q.stride(), first + kv_heads * q.stride(1))
