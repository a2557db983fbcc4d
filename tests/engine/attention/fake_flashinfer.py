"""FlashInfer stand-in in torch: signatures and rules of 0.7.2, without its kernels.

What would be slow or silently wrong on a GPU is an error here: a plan from tensors on the device,
a plan written to a buffer that the device has still to read, a run with the plan of another
wrapper, lengths on the device that are not those planned for, a captured wrapper that is planned
for other kernels than were captured.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from tests.engine.attention.fake_launch import STAGED
from tests.engine.attention.fake_ragged import BatchPrefillWithRaggedKVCacheWrapper
from tests.engine.attention.fake_wrapper import PLANS, QUEUED, RUNS, Wrapper, host
from tests.engine.attention.steps import Guarded

__all__ = [
    "PLANS",
    "RUNS",
    "BatchDecodeWithPagedKVCacheWrapper",
    "BatchPrefillWithPagedKVCacheWrapper",
    "BatchPrefillWithRaggedKVCacheWrapper",
    "fast_decode_plan",
    "merge_state_in_place",
]

IS_GUARDED = True
"""Whether tensors that stand for those of a device are told apart."""


def _may_be_read(tensor: torch.Tensor | None) -> bool:
    """Whether a captured wrapper may read it."""
    return isinstance(tensor, Guarded if IS_GUARDED else torch.Tensor)


def reset() -> None:
    """Forget everything that was planned."""
    for kept in (PLANS, QUEUED, STAGED, RUNS):
        kept.clear()


class Event:
    """``torch.cuda.Event`` where the device does nothing until somebody waits for it."""

    def __init__(self) -> None:
        self._behind = 0

    def record(self) -> None:
        self._behind = len(PLANS)

    def synchronize(self) -> None:
        del QUEUED[: max(0, self._behind - (len(PLANS) - len(QUEUED)))]


class BatchDecodeWithPagedKVCacheWrapper(Wrapper):
    """One query for each line."""

    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: torch.Tensor | None = None,
        paged_kv_indices_buffer: torch.Tensor | None = None,
        paged_kv_last_page_len_buffer: torch.Tensor | None = None,
        backend: str = "auto",
        jit_args: list[Any] | None = None,
    ) -> None:
        super().__init__(float_workspace_buffer, kv_layout, backend)
        if not use_tensor_cores or backend != "fa2":
            raise ValueError("only what was seen to work is expected")
        self._use_cuda_graph = use_cuda_graph
        self.disable_split_kv: bool | None = None
        self._buffers = (
            paged_kv_indptr_buffer,
            paged_kv_indices_buffer,
            paged_kv_last_page_len_buffer,
        )
        if use_cuda_graph and not all(map(_may_be_read, self._buffers)):
            raise ValueError("a captured wrapper reads buffers on the device")

    def plan(
        self,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        *,
        pos_encoding_mode: str = "NONE",
        window_left: int = -1,
        window_right: int = 0,
        logits_soft_cap: float | None = None,
        q_data_type: torch.dtype | str | None = "float16",
        kv_data_type: torch.dtype | str | None = None,
        o_data_type: torch.dtype | str | None = None,
        data_type: torch.dtype | str | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        non_blocking: bool = True,
        block_tables: torch.Tensor | None = None,
        seq_lens: torch.Tensor | None = None,
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,
        q_len_per_req: int = 1,
        is_causal: bool | None = None,
    ) -> None:
        given = (indptr, indices, last_page_len)
        if self._use_cuda_graph:
            for buffer, values in zip(self._buffers, given, strict=True):
                if buffer is None or len(values) > len(buffer):
                    raise ValueError("a buffer is too small")
                buffer[: len(values)].copy_(values)
        else:
            # From pinned memory they are copied later, so who writes there writes here.
            self._buffers = given
        self.replan(
            indptr,
            last_page_len,
            (num_qo_heads, num_kv_heads, head_dim, page_size),
            window_left,
            logits_soft_cap,
            q_data_type,
            kv_data_type,
            sm_scale,
            disable_split_kv,
        )

    def replan(
        self,
        indptr: torch.Tensor,
        last_page_len: torch.Tensor,
        heads: tuple[int, int, int, int],
        window_left: int,
        logits_soft_cap: float | None,
        q_data_type: torch.dtype | str | None,
        kv_data_type: torch.dtype | str | None,
        sm_scale: float | None,
        disable_split_kv: bool,
    ) -> None:
        """Plan without copies."""
        if self._use_cuda_graph and self.disable_split_kv not in (None, disable_split_kv):
            raise ValueError("partial answers are merged only if the capture merges them")
        self.disable_split_kv = disable_split_kv
        self._stage(
            query_indptr=torch.arange(len(last_page_len) + 1),
            page_indptr=host(indptr),
            last_page_len=host(last_page_len),
            heads=heads,
            causal=False,
            window_left=window_left,
            softcap=logits_soft_cap,
            q_data_type=q_data_type,
            kv_data_type=kv_data_type,
            scale=heads[2] ** -0.5 if sm_scale is None else sm_scale,
        )

    def run(
        self,
        q: torch.Tensor,
        paged_kv_cache: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        *args: Any,
        q_scale: float | None = None,
        k_scale: float | None = None,
        v_scale: float | None = None,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
        enable_pdl: bool | None = None,
        window_left: int | None = None,
        sinks: torch.Tensor | None = None,
        q_len_per_req: int | None = None,
        skip_softmax_threshold_scale_factor: float | None = None,
        kv_cache_sf: Any = None,
    ) -> Any:
        indptr, indices, last = self._buffers
        if indptr is None or indices is None or last is None:
            raise RuntimeError("not planned")
        one_each = torch.arange(len(last) + 1)
        return self._run(q, paged_kv_cache, one_each, indptr, indices, last, out, return_lse, lse)


def fast_decode_plan(
    self: BatchDecodeWithPagedKVCacheWrapper,
    indptr: torch.Tensor,
    indices: torch.Tensor,
    last_page_len: torch.Tensor,
    num_qo_heads: int,
    num_kv_heads: int,
    head_dim: int,
    page_size: int,
    pos_encoding_mode: str = "NONE",
    window_left: int = -1,
    logits_soft_cap: float | None = None,
    q_data_type: torch.dtype | str | None = None,
    kv_data_type: torch.dtype | str | None = None,
    data_type: torch.dtype | str | None = None,
    sm_scale: float | None = None,
    rope_scale: float | None = None,
    rope_theta: float | None = None,
    non_blocking: bool = True,
    fixed_split_size: int | None = None,
    disable_split_kv: bool = False,
    q_len_per_req: int = 1,
    global_override_indptr_cpu: torch.Tensor | None = None,
) -> None:
    """Plan a captured wrapper anew: its buffers are left as they are."""
    buffers = self._buffers
    if (
        self._plan_info is None
        or not self._use_cuda_graph
        or buffers[1] is None
        or buffers[2] is None
    ):
        raise RuntimeError("only a captured wrapper that has been planned is expected")
    if len(last_page_len) != len(buffers[2]) or len(indices) > len(buffers[1]):
        raise ValueError("not of the size that was captured")
    heads = (num_qo_heads, num_kv_heads, head_dim, page_size)
    self.replan(
        indptr,
        last_page_len,
        heads,
        window_left,
        logits_soft_cap,
        q_data_type,
        kv_data_type,
        sm_scale,
        disable_split_kv,
    )


class BatchPrefillWithPagedKVCacheWrapper(Wrapper):
    """Several queries for each line, or none."""

    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf: torch.Tensor | None = None,
        paged_kv_indptr_buf: torch.Tensor | None = None,
        paged_kv_indices_buf: torch.Tensor | None = None,
        paged_kv_last_page_len_buf: torch.Tensor | None = None,
        custom_mask_buf: torch.Tensor | None = None,
        mask_indptr_buf: torch.Tensor | None = None,
        backend: str = "auto",
        jit_args: list[Any] | None = None,
        jit_kwargs: dict[str, Any] | None = None,
        variant_owns_mask: bool = False,
    ) -> None:
        super().__init__(float_workspace_buffer, kv_layout, backend)
        if use_cuda_graph:
            raise ValueError("chunks are not captured")

    def plan(
        self,
        qo_indptr: torch.Tensor,
        paged_kv_indptr: torch.Tensor,
        paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        head_dim_vo: int | None = None,
        custom_mask: torch.Tensor | None = None,
        packed_custom_mask: torch.Tensor | None = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        q_data_type: torch.dtype | str = "float16",
        kv_data_type: torch.dtype | str | None = None,
        o_data_type: torch.dtype | str | None = None,
        non_blocking: bool = True,
        prefix_len_ptr: torch.Tensor | None = None,
        token_pos_in_items_ptr: torch.Tensor | None = None,
        token_pos_in_items_len: int = 0,
        max_item_len_ptr: torch.Tensor | None = None,
        seq_lens: torch.Tensor | None = None,
        seq_lens_q: torch.Tensor | None = None,
        block_tables: torch.Tensor | None = None,
        max_token_per_sequence: int | None = None,
        max_sequence_kv: int | None = None,
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,
        uniform_q_len: int | None = None,
    ) -> None:
        # Where the rows of queries begin is counted from the first one that ``run`` is given.
        if int(qo_indptr[0]) or not len(qo_indptr) == len(paged_kv_indptr):
            raise ValueError("query_indptr does not begin at 0, or is of another length")
        self._buffers = (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        self._stage(
            query_indptr=host(qo_indptr),
            page_indptr=host(paged_kv_indptr),
            last_page_len=host(paged_kv_last_page_len),
            heads=(num_qo_heads, num_kv_heads, head_dim_qk, page_size),
            causal=causal,
            window_left=window_left,
            softcap=logits_soft_cap,
            q_data_type=q_data_type,
            kv_data_type=kv_data_type,
            scale=head_dim_qk**-0.5 if sm_scale is None else sm_scale,
        )

    def run(
        self,
        q: torch.Tensor,
        paged_kv_cache: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        *args: Any,
        q_scale: float | None = None,
        k_scale: float | None = None,
        v_scale: float | None = None,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
        lse_base: str = "log2",
        lse_layout: str = "NH",
        enable_pdl: bool | None = None,
        window_left: int | None = None,
        sinks: torch.Tensor | None = None,
        kv_cache_sf: Any = None,
        skip_softmax_threshold_scale_factor: float | None = None,
        use_fp16_softmax: bool | None = None,
        uses_spcompress: bool | None = None,
    ) -> Any:
        return self._run(q, paged_kv_cache, *self._buffers, out, return_lse, lse)


def merge_state_in_place(
    v: torch.Tensor,
    s: torch.Tensor,
    v_other: torch.Tensor,
    s_other: torch.Tensor,
    mask: torch.Tensor | None = None,
) -> None:
    """Merge what two parts of a context answer; weights are logarithms to the base of two."""
    if not v.is_contiguous() or s.dtype != torch.float32 or s.shape != v.shape[:2]:
        raise ValueError("not what can be merged")
    weights = torch.softmax(torch.stack((s, s_other)).double() * math.log(2), 0).unsqueeze(-1)
    v.copy_(weights[0] * v + weights[1] * v_other)
    s.copy_(torch.logsumexp(torch.stack((s, s_other)) * math.log(2), 0) / math.log(2))
