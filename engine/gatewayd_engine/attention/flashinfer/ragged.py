"""Prefill attention over contiguous keys and values of the step, by FlashInfer's ragged kernels.

FlashAttention 3 loads contiguous keys by TMA, and paged keys by gathers, at half of its speed:
307 TFLOP/s were measured on an H200. The keys and values that a step computes for a chunk are
contiguous. Those computed before are in pages: they are attended separately, and both results are
merged by their weights. Sources: FlashAttention-3 (Shah et al., arXiv 2407.08608); merging as in
cascade inference (FlashInfer, Ye et al., arXiv 2501.01005, section 3.1).
"""

from __future__ import annotations

from dataclasses import dataclass

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
"""Length-weighted mean of chunk lengths from which on merging pays off. Computed, not measured: at
twice the speed, a layer of Llama 3.1 8B takes 0.013 ns * n less per token of a chunk of n. Merging
moves 32 kB per token, which takes 8 ns, and launches two more kernels."""


class RaggedChunks:
    """Planner of prefill chunks with ragged attention.

    Args:
        shape: attention shape of the model.
        page_size: tokens per page.
        wrappers: creates and plans FlashInfer's wrappers.
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
        # A window is relative to the end of the context, which separate attention to the cached
        # part could not express.
        self._cached = wrappers.prefill("fa3") if wrappers.windows == [0] else None

    def plan(self, inputs: StepInputs) -> dict[int, LayerRun] | None:
        """Plan the chunks of a step, whose keys must be rotated in place.

        Returns:
            Attention per window; None if paged attention is faster, or the only possibility.
        """
        host, n = inputs.host, inputs.host.num_decode
        query_indptr = host.query_indptr[n:] - n
        counts, num_pages = query_indptr.diff(), host.page_indptr[n:].diff()
        # Tokens of each sequence before its chunk.
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
        """Whether merging pays off for chunks of these lengths, int64 ``[n]``."""
        squares = int((counts * counts).sum())
        return self._cached is not None and squares >= self._least_merged * int(counts.sum())

    def _plan_cached(
        self,
        wrapper: BatchPrefillWithPagedKVCacheWrapper,
        inputs: StepInputs,
        query_indptr: torch.Tensor,
        cached: torch.Tensor,
    ) -> None:
        """Plan attention of each sequence to its first ``cached`` tokens, shape ``[n]``."""
        size, begins = self._page_size, inputs.host.page_indptr[inputs.host.num_decode :]
        full = (cached + size - 1) // size
        # After each sequence comes one with the rest of its pages and no query, so that the pages
        # need not be copied without those.
        page_indptr = torch.empty(2 * len(cached) + 1, dtype=torch.int32)
        page_indptr[0::2] = begins
        page_indptr[1::2] = begins[:-1] + full
        queries = torch.empty_like(page_indptr)
        queries[0::2] = query_indptr
        queries[1::2] = query_indptr[1:]
        last_page_len = torch.empty(2 * len(cached), dtype=torch.int32)
        last_page_len[0::2] = cached - (full - 1).clamp_min(0) * size
        # Where no page is left over, that sequence is empty.
        last_page_len[1::2] = torch.where(page_indptr[2::2] > page_indptr[1::2], size, 0)
        self._wrappers.plan_prefill(
            wrapper, 0, queries, page_indptr, inputs.pages, last_page_len, causal=False
        )


class _Own:
    """Attention to the keys and values of the step itself."""

    __slots__ = ("_kv_heads", "_run")

    def __init__(self, run: LayerRun, kv_heads: int) -> None:
        self._run = run
        self._kv_heads = kv_heads

    def run(
        self,
        q: torch.Tensor,
        paged_kv_cache: KeysValues,
        *,
        out: torch.Tensor,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
    ) -> None:
        """See ``LayerRun``."""
        self._run.run(q, _behind(q, self._kv_heads), out=out, lse=lse, return_lse=return_lse)


@dataclass(slots=True, eq=False, repr=False)
class _Merged:
    """Attention to the keys and values of the step and to cached ones, merged."""

    _own: BatchPrefillWithRaggedKVCacheWrapper
    _cached: BatchPrefillWithPagedKVCacheWrapper
    _kv_heads: int

    def run(
        self,
        q: torch.Tensor,
        paged_kv_cache: KeysValues,
        *,
        out: torch.Tensor,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
    ) -> None:
        """See ``LayerRun``."""
        keys, values = _behind(q, self._kv_heads)
        _, weight = self._own.run(q, keys, values, out=out, lse=lse, return_lse=True)
        cached, cached_weight = self._cached.run(q, paged_kv_cache, return_lse=True)
        merge_state_in_place(out, weight, cached, cached_weight)


def _behind(q: torch.Tensor, kv_heads: int) -> KeysValues:
    """Return views of the keys and values after queries, each ``[tokens, kv_heads, head_dim]``."""
    tokens, heads, dim = q.shape
    # A token's keys and values follow its queries in the output of the QKV projection.
    first = q.storage_offset() + heads * q.stride(1)
    size = (tokens, kv_heads, dim)
    keys = q.as_strided(size, q.stride(), first)
    return keys, q.as_strided(size, q.stride(), first + kv_heads * q.stride(1))
