"""FlashInfer cascade attention, which reads the shared prefix of all decoding sequences once.

All queries attend to the shared pages together, as one matrix product, and each to its own pages;
the two results are merged by their weights. Source: cascade inference, FlashInfer (Ye et al. 2024);
Hydragen, arXiv 2402.05099.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from flashinfer import BatchPrefillWithPagedKVCacheWrapper, merge_state_in_place

from gatewayd_engine.attention.append import Append
from gatewayd_engine.attention.flashinfer.backend import AttentionPart, FlashAttention
from gatewayd_engine.attention.flashinfer.calls import KeysValues
from gatewayd_engine.attention.shared_prefix import LEAST_SAVED
from gatewayd_engine.attention.sinks import SinkScaling
from gatewayd_engine.attention.step_inputs import StepInputs
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.model.attention_shape import AttentionShape


class CascadeAttention(FlashAttention):
    """``FlashAttention`` with cascade attention in eager steps of sequences with a long prefix.

    Args:
        shape: attention shape of the model. With windows cascade attention is not used, as a token
            may not see the prefix any more.
        pool: KV pool.
        append: applies rotary embedding and appends keys and values to the pool.
        least_saved: tokens in common, not counting the first sequence's, from which on cascade
            attention is used.
        sinks: see ``FlashAttention``.
    """

    def __init__(
        self,
        shape: AttentionShape,
        pool: KvPool,
        append: Append,
        least_saved: int = LEAST_SAVED,
        sinks: SinkScaling | None = None,
    ) -> None:
        super().__init__(shape, pool, append, sinks)
        self.least_saved = least_saved if self._wrappers.windows == [0] else None
        self._page_size = pool.page_size
        self._shared, self._own = (self._wrappers.prefill("fa2") for _ in range(2))
        if self.least_saved is not None:
            # Compiled at its first call: here rather than in a step.
            size = (2, 1, shape.num_heads, shape.head_dim)
            answer = torch.zeros(size, dtype=pool.dtype, device=pool.data.device)
            weight = torch.zeros(2, 1, shape.num_heads, device=answer.device)
            merge_state_in_place(answer[0], weight[0], answer[1], weight[1])

    def _plan_decode(self, inputs: StepInputs) -> AttentionPart:
        host, n = inputs.host, inputs.host.num_decode
        saved = (n - 1) * host.shared_pages * self._page_size
        if self.least_saved is None or saved < self.least_saved:
            return super()._plan_decode(inputs)
        # The first sequence's pages begin with the shared ones.
        self._wrappers.plan_prefill(
            self._shared,
            0,
            torch.tensor([0, n], dtype=torch.int32),
            torch.tensor([0, host.shared_pages], dtype=torch.int32),
            inputs.pages,
            torch.tensor([self._page_size], dtype=torch.int32),
            causal=False,
        )
        # Before each sequence comes one with its shared pages and no query, so that the pages need
        # not be copied without them.
        begins = host.page_indptr[:n]
        page_indptr = torch.empty(2 * n + 1, dtype=torch.int32)
        page_indptr[0::2] = host.page_indptr[: n + 1]
        page_indptr[1::2] = begins + host.shared_pages
        last_page_len = torch.full((2 * n,), self._page_size, dtype=torch.int32)
        last_page_len[1::2] = host.last_page_len[:n]
        self._wrappers.plan_prefill(
            self._own,
            0,
            # One query for every second sequence, none for those with shared pages.
            torch.arange(2 * n + 1, dtype=torch.int32) // 2,
            page_indptr,
            inputs.pages,
            last_page_len,
            causal=False,
        )
        return AttentionPart(n, {0: _Merged(self._shared, self._own)})


@dataclass(slots=True, eq=False, repr=False)
class _Merged:
    """Attention to shared pages and to each sequence's own pages, merged."""

    _shared: BatchPrefillWithPagedKVCacheWrapper
    _own: BatchPrefillWithPagedKVCacheWrapper

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
        _, weight = self._own.run(q, paged_kv_cache, out=out, lse=lse, return_lse=True)
        shared, shared_weight = self._shared.run(q, paged_kv_cache, return_lse=True)
        # Weighted by the log-sum-exp of both parts; the results are in ``out`` and ``lse``.
        merge_state_in_place(out, weight, shared, shared_weight)
