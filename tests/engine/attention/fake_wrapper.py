"""Common base of the FlashInfer wrapper stand-ins, with a record of calls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from tests.engine.attention.fake_launch import STAGED, paged_run, ragged_run
from tests.engine.attention.steps import Guarded

PLANS: list[Any] = []
"""The wrapper of each plan."""
QUEUED: list[int] = []
"""Staging buffers that the device has not read yet, oldest first."""
RUNS: list[Any] = []
"""The wrapper of each call of ``run``: what goes to ``paged_run`` alone is not among them."""


class Wrapper:
    """What all wrappers have in common."""

    def __init__(self, workspace: torch.Tensor, kv_layout: str, backend: str) -> None:
        if workspace.dtype != torch.uint8 or workspace.data_ptr() % 16 or workspace[:64].any():
            raise ValueError("the workspace is no zeroed and aligned uint8 tensor")
        if kv_layout != "NHD" or backend not in ("fa2", "fa3"):
            raise ValueError("only what was seen to work is expected")
        self._int_workspace_buffer = torch.empty(64, dtype=torch.uint8)
        self._pin_memory_int_workspace_buffer = torch.empty(64, dtype=torch.uint8)
        self._float_workspace_buffer = workspace
        self._plan_info: dict[str, Any] | None = None
        self._cached_module: Any = None

    def _stage(self, **plan: Any) -> None:
        staging = self._pin_memory_int_workspace_buffer.data_ptr()
        if staging in QUEUED:
            raise RuntimeError("the device has still to read the plan in this buffer")
        PLANS.append(self)
        QUEUED.append(staging)
        STAGED[self._int_workspace_buffer.data_ptr()] = len(PLANS)
        self._plan_info = {"number": len(PLANS), **plan}
        self._cached_module = MODULE

    def _run(
        self,
        q: torch.Tensor,
        paged_kv_cache: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        query_indptr: torch.Tensor,
        page_indptr: torch.Tensor,
        pages: torch.Tensor,
        last_page_len: torch.Tensor,
        out: torch.Tensor | None,
        return_lse: bool,
        lse: torch.Tensor | None = None,
    ) -> Any:
        """Check what is given, and hand on what launches."""
        plan = self._plan_info
        if plan is None:
            raise RuntimeError("not planned")
        RUNS.append(self)
        heads, kv_heads, dim, size = plan["heads"]
        k, v = paged_kv_cache if isinstance(paged_kv_cache, tuple) else paged_kv_cache.unbind(1)
        if q.shape != (int(plan["query_indptr"][-1]), heads, dim) or q.stride(-1) != 1:
            raise ValueError("queries are not of the shape that was planned")
        if not k.shape[1:] == v.shape[1:] == (size, kv_heads, dim):
            raise ValueError("keys and values are not of the shape that was planned")
        if q.dtype != plan["q_data_type"] or not k.dtype == v.dtype == plan["kv_data_type"]:
            raise ValueError("not of the type that was planned")
        if out is None:
            out = torch.empty(q.shape, dtype=q.dtype)
        if out.shape != q.shape or out.dtype != q.dtype:
            raise ValueError("out is not of the shape of the queries")
        lse = lse_of(q, lse) if return_lse else None
        indptrs = (query_indptr, page_indptr, pages, last_page_len)
        workspaces = (self._float_workspace_buffer, self._int_workspace_buffer, plan)
        self._cached_module.paged_run(*workspaces, q, k, v, *indptrs, out, lse)
        return (out, lse) if return_lse else out


def lse_of(q: torch.Tensor, given: torch.Tensor | None) -> torch.Tensor:
    """Where the log-sum-exps of queries go."""
    if given is None:
        return torch.empty(q.shape[:2], dtype=torch.float32)
    if given.shape != q.shape[:2] or given.dtype != torch.float32:
        raise ValueError("lse is not of the shape of the queries' heads")
    return given


MODULE = SimpleNamespace(paged_run=paged_run, ragged_run=ragged_run)
"""What all wrappers of one kind share."""


def host(tensor: torch.Tensor) -> torch.Tensor:
    """What the planner reads."""
    if isinstance(tensor, Guarded):
        raise RuntimeError("planning waits for the device")
    if tensor.dtype != torch.int32 or not tensor.is_contiguous():
        raise TypeError("the planner reads contiguous int32")
    return tensor.clone()
