"""FlashInfer's ragged wrapper in torch; see ``fake_flashinfer``."""

from __future__ import annotations

from typing import Any

import torch

from tests.engine.attention.fake_wrapper import RUNS, Wrapper, host, lse_of


class BatchPrefillWithRaggedKVCacheWrapper(Wrapper):
    """Several queries for each line, whose keys and values lie in one piece."""

    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf: torch.Tensor | None = None,
        kv_indptr_buf: torch.Tensor | None = None,
        custom_mask_buf: torch.Tensor | None = None,
        mask_indptr_buf: torch.Tensor | None = None,
        backend: str = "auto",
        jit_args: list[Any] | None = None,
        jit_kwargs: dict[str, Any] | None = None,
        variant_owns_mask: bool = False,
    ) -> None:
        super().__init__(float_workspace_buffer, kv_layout, backend)
        if use_cuda_graph or backend != "fa3":
            raise ValueError("only what was seen to work is expected")

    def plan(
        self,
        qo_indptr: torch.Tensor,
        kv_indptr: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        head_dim_vo: int | None = None,
        custom_mask: torch.Tensor | None = None,
        packed_custom_mask: torch.Tensor | None = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
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
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,
        seq_lens: torch.Tensor | None = None,
        seq_lens_q: torch.Tensor | None = None,
        max_token_per_sequence: int | None = None,
        max_sequence_kv: int | None = None,
        v_indptr: torch.Tensor | None = None,
        o_indptr: torch.Tensor | None = None,
        uniform_q_len: int | None = None,
    ) -> None:
        if int(qo_indptr[0]) or len(qo_indptr) != len(kv_indptr):
            raise ValueError("indptr does not begin at 0, or is of another length")
        self._buffers = (qo_indptr, kv_indptr)
        self._stage(
            query_indptr=host(qo_indptr),
            kv_indptr=host(kv_indptr),
            heads=(num_qo_heads, num_kv_heads, head_dim_qk, 0),
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
        k: torch.Tensor,
        v: torch.Tensor,
        *args: Any,
        q_scale: float | None = None,
        k_scale: float | None = None,
        v_scale: float | None = None,
        o_scale: float | None = None,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
        lse_base: str = "log2",
        lse_layout: str = "NH",
        enable_pdl: bool | None = None,
        kv_cache_sf: Any = None,
    ) -> Any:
        plan = self._plan_info
        if plan is None:
            raise RuntimeError("not planned")
        RUNS.append(self)
        heads, kv_heads, dim, _ = plan["heads"]
        tokens = int(plan["query_indptr"][-1])
        if q.shape != (tokens, heads, dim) or not k.shape == v.shape == (tokens, kv_heads, dim):
            raise ValueError("not of the shape that was planned")
        # What TMA loads has to begin at multiples of 16 bytes; smaller heads are a test's.
        if not k.stride() == v.stride() == q.stride() or q.stride(-1) != 1:
            raise ValueError("queries, keys and values lie apart")
        if out is None:
            out = torch.empty(q.shape, dtype=q.dtype)
        sums = lse_of(q, lse) if return_lse else None
        workspaces = (self._float_workspace_buffer, self._int_workspace_buffer, plan)
        self._cached_module.ragged_run(*workspaces, q, k, v, *self._buffers, out, sums)
        return (out, sums) if return_lse else out
