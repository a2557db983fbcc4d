"""FlashInfer's wrappers: made for a model, planned from the host without waiting for the device.

A plan is worked out on the host, written to a pinned buffer and copied from there when the stream
comes to it. Planning the next step must not write over it before that, so wrappers take turns
with a few buffers, and an event says when one has been copied. Source: FlashInfer (Ye et al.,
arXiv 2501.01005).
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
"""Pinned buffers: the plans of two steps of the usual kind, so that nobody waits for one."""


class Wrappers:
    """Makes and plans wrappers for one model; all plans and launches are of one stream.

    Args:
        shape: the model's attention.
        pool: what the wrappers attend to.

    Attributes:
        windows: the windows that the model's layers have: each is a plan of its own.
        layers: keys and values by layer, slices of the pool.
    """

    def __init__(self, shape: AttentionShape, pool: KvPool) -> None:
        self.windows = sorted(set(shape.windows))
        # Made once: a layer that is given its two tensors makes none.
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
        # Captured sizes share one per window: only what is replayed next has a plan.
        self._ints = {window: self._int_buffer() for window in self.windows}
        pinned = self._device.type == "cuda"
        self._staging = [
            (
                torch.empty(INTS, dtype=torch.uint8, pin_memory=pinned),
                torch.cuda.Event(),  # type: ignore[no-untyped-call]
            )
            for _ in range(_TURNS * len(self.windows))
        ]
        self._turn = 0

    def decode(self) -> BatchDecodeWithPagedKVCacheWrapper:
        """A wrapper for lines of one token."""
        return BatchDecodeWithPagedKVCacheWrapper(
            self._floats, "NHD", use_tensor_cores=True, backend="fa2"
        )

    def prefill(self, backend: str) -> BatchPrefillWithPagedKVCacheWrapper:
        """A wrapper for lines of several tokens."""
        return BatchPrefillWithPagedKVCacheWrapper(self._floats, "NHD", backend=backend)

    def ragged(self) -> BatchPrefillWithRaggedKVCacheWrapper:
        """A wrapper for lines of several tokens that attend to themselves, by FlashAttention 3."""
        return BatchPrefillWithRaggedKVCacheWrapper(self._floats, "NHD", backend="fa3")

    def captured(self, inputs: StepInputs, window: int) -> BatchDecodeWithPagedKVCacheWrapper:
        """A wrapper for lines of one token that always reads the same tensors, planned once."""
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
        wrapper._int_workspace_buffer = self._ints[window]
        host = inputs.host
        # No pages to copy: they are in the step's tensor, which the wrapper reads.
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
        """Whether a captured step of so many lines splits no context.

        For a capture FlashInfer always launches the kernel that writes partial answers, and the
        one that merges them, even where its planner splits nothing. Which kernels are captured
        follows from the first plan, so each plan of one size has to say the same.
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
        """Plan lines of one token each, from the host's tensors and the device's pages."""
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
        """Plan lines of several tokens, from the host's tensors and the device's pages."""
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
        """Plan lines whose keys are those of their own tokens, from the host's tensor."""
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
        """Plan what has been captured anew: nothing but the plan goes to the device."""
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
        """Give a wrapper the buffer whose turn it is to write its plan to."""
        buffer, copied = self._staging[self._turn]
        self._turn = (self._turn + 1) % len(self._staging)
        copied.synchronize()
        wrapper._pin_memory_int_workspace_buffer = buffer
        try:
            yield
        finally:
            # What fails may have queued its copy before.
            copied.record()

    def _int_buffer(self) -> torch.Tensor:
        return torch.empty(INTS, dtype=torch.uint8, device=self._device)


def _pageable(host: torch.Tensor) -> torch.Tensor:
    """A copy that nobody else writes to.

    A wrapper copies it to the device without waiting. From pinned memory the device would read
    later, when the caller may have written the next step's sizes there.
    """
    return torch.empty(host.shape, dtype=host.dtype).copy_(host)
