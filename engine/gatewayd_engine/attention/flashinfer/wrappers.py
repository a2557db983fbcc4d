"""FlashInfer's wrappers for a model, planned on the host without device synchronisation.

A plan is computed on the host, written to a pinned buffer and copied from there in stream order.
Planning the next step must not overwrite it before that, so wrappers rotate over a few buffers, and
an event signals when one has been copied. Source: FlashInfer (Ye et al., arXiv 2501.01005).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from flashinfer import (
    BatchDecodeWithPagedKVCacheWrapper,
    BatchPrefillWithPagedKVCacheWrapper,
    BatchPrefillWithRaggedKVCacheWrapper,
    fast_decode_plan,
)

from gatewayd_engine.attention.flashinfer.workspaces import FLOATS, INTS
from gatewayd_engine.attention.step_inputs import StepInputs
from gatewayd_engine.kernels.attention.splits import fills, num_multiprocessors
from gatewayd_engine.kv.pool import KvPool, zeros
from gatewayd_engine.model.attention_shape import AttentionShape

_TURNS = 6
"""Pinned buffers per window: enough for the plans of two typical steps without waiting."""


class Wrappers:
    """Factory and planner of wrappers for one model; all plans and launches use one stream.

    Args:
        shape: attention shape of the model.
        pool: KV pool.

    Attributes:
        windows: distinct sliding windows of the model's layers, each of which needs its own plan;
            only that of whole contexts where windows are chunks.
        layers: keys and values by layer, slices of the pool.
    """

    def __init__(self, shape: AttentionShape, pool: KvPool) -> None:
        distinct = sorted(set(shape.windows))
        self.windows = [0] if shape.chunked else distinct
        # Views are created once, not in every call of a layer.
        self.layers = [layer.unbind(1) for layer in pool.data.unbind(1)]
        self._heads = (shape.num_heads, shape.num_kv_heads, shape.head_dim, pool.page_size)
        self._settings = {
            "logits_soft_cap": shape.softcap,
            "sm_scale": shape.scale,
            "q_data_type": pool.dtype,
            "kv_data_type": pool.data.dtype,
        }
        self._device = pool.data.device
        self._floats = zeros((FLOATS,), torch.uint8, self._device)
        # Captured sizes share one per window: only the next replay needs a plan.
        self._ints = {window: self._int_buffer() for window in self.windows}
        pinned = self._device.type == "cuda"
        self._staging = [
            (
                torch.empty(INTS, dtype=torch.uint8, pin_memory=pinned),
                torch.cuda.Event(),  # type: ignore[no-untyped-call]
            )
            for _ in range(_TURNS * len(distinct))
        ]
        self._turn = 0

    def decode(self) -> BatchDecodeWithPagedKVCacheWrapper:
        """Create a wrapper for sequences of one token."""
        return BatchDecodeWithPagedKVCacheWrapper(
            self._floats, "NHD", use_tensor_cores=True, backend="fa2"
        )

    def prefill(self, backend: str) -> BatchPrefillWithPagedKVCacheWrapper:
        """Create a wrapper for sequences of several tokens."""
        return BatchPrefillWithPagedKVCacheWrapper(self._floats, "NHD", backend=backend)

    def ragged(self) -> BatchPrefillWithRaggedKVCacheWrapper:
        """Create a FlashAttention 3 wrapper for sequences that attend to their own tokens."""
        return BatchPrefillWithRaggedKVCacheWrapper(self._floats, "NHD", backend="fa3")

    def captured(self, inputs: StepInputs, window: int) -> BatchDecodeWithPagedKVCacheWrapper:
        """Create and plan a wrapper for captured steps, which always reads the same tensors."""
        wrapper = BatchDecodeWithPagedKVCacheWrapper(
            self._floats,
            "NHD",
            use_cuda_graph=True,
            use_tensor_cores=True,
            paged_kv_indptr_buffer=inputs.page_indptr,
            paged_kv_indices_buffer=inputs.pages,
            paged_kv_last_page_len_buffer=inputs.last_page_len,
            backend="fa2",
        )
        # Replaces the wrapper's own buffer, which is released.
        wrapper._int_workspace_buffer = self._ints[window]
        host = inputs.host
        # No pages to copy: the wrapper reads the step's tensor.
        self.plan_decode(
            wrapper,
            window,
            host.page_indptr,
            inputs.pages[:0],
            host.last_page_len,
            disable_split_kv=self._is_whole(host.num_lines),
        )
        return wrapper

    def _is_whole(self, num_lines: int) -> bool:
        """Whether a captured step of ``num_lines`` sequences uses no KV splits.

        For a capture FlashInfer always launches the kernel that writes partial results, and the one
        that merges them, even where its planner splits nothing. The captured kernels follow from
        the first plan, so all plans of one size must agree on this.
        """
        return fills(num_lines * self._heads[1], num_multiprocessors(self._device))

    def plan_decode(
        self,
        wrapper: BatchDecodeWithPagedKVCacheWrapper,
        window: int,
        page_indptr: torch.Tensor,
        pages: torch.Tensor,
        last_page_len: torch.Tensor,
        disable_split_kv: bool = False,
    ) -> None:
        """Plan sequences of one token each, from the host's tensors and the device's pages."""
        with self._staged(wrapper):
            wrapper.plan(
                _pageable(page_indptr),
                pages,
                _pageable(last_page_len),
                *self._heads,
                window_left=window - 1,
                disable_split_kv=disable_split_kv,
                **self._settings,
            )

    def plan_prefill(
        self,
        wrapper: BatchPrefillWithPagedKVCacheWrapper,
        window: int,
        query_indptr: torch.Tensor,
        page_indptr: torch.Tensor,
        pages: torch.Tensor,
        last_page_len: torch.Tensor,
        causal: bool = True,
    ) -> None:
        """Plan sequences of several tokens, from the host's tensors and the device's pages."""
        with self._staged(wrapper):
            wrapper.plan(
                _pageable(query_indptr),
                _pageable(page_indptr),
                pages,
                _pageable(last_page_len),
                *self._heads,
                causal=causal,
                window_left=window - 1,
                **self._settings,
            )

    def plan_ragged(
        self,
        wrapper: BatchPrefillWithRaggedKVCacheWrapper,
        window: int,
        indptr: torch.Tensor,
    ) -> None:
        """Plan sequences that attend to their own tokens only, from the host's tensor."""
        num_heads, num_kv_heads, head_dim, _ = self._heads
        with self._staged(wrapper):
            wrapper.plan(
                _pageable(indptr),
                _pageable(indptr),
                num_heads,
                num_kv_heads,
                head_dim,
                causal=True,
                window_left=window - 1,
                **self._settings,
            )

    def plan_replay(
        self,
        wrapper: BatchDecodeWithPagedKVCacheWrapper,
        window: int,
        page_indptr: torch.Tensor,
        pages: torch.Tensor,
        last_page_len: torch.Tensor,
    ) -> None:
        """Plan the next replay of a captured wrapper: only the plan is copied to the device."""
        with self._staged(wrapper):
            fast_decode_plan(
                wrapper,
                page_indptr,
                pages,
                last_page_len,
                *self._heads,
                window_left=window - 1,
                disable_split_kv=self._is_whole(len(last_page_len)),
                **self._settings,
            )

    @contextmanager
    def _staged(
        self,
        wrapper: BatchDecodeWithPagedKVCacheWrapper
        | BatchPrefillWithPagedKVCacheWrapper
        | BatchPrefillWithRaggedKVCacheWrapper,
    ) -> Iterator[None]:
        """Assign the next pinned buffer to a wrapper, for its plan."""
        buffer, copied = self._staging[self._turn]
        self._turn = (self._turn + 1) % len(self._staging)
        # Waits only if the device has not yet copied the plan that was in this buffer.
        copied.synchronize()
        wrapper._pin_memory_int_workspace_buffer = buffer
        try:
            yield
        finally:
            # A plan that failed may have queued its copy already.
            copied.record()

    def _int_buffer(self) -> torch.Tensor:
        return torch.empty(INTS, dtype=torch.uint8, device=self._device)


def _pageable(host: torch.Tensor) -> torch.Tensor:
    """Return a private copy in pageable memory.

    A wrapper copies it to the device asynchronously. From pinned memory the device would read it
    later, when the caller may have overwritten it with the next step's sizes.
    """
    return torch.empty(host.shape, dtype=host.dtype).copy_(host)
