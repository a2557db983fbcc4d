"""What FlashInfer's wrappers launch, in torch: it computes, and looks at nothing but the plan."""

from __future__ import annotations

import math
from typing import Any

import torch

STAGED: dict[int, int] = {}
"""Which plan a workspace on the device holds."""


def paged_run(
    float_workspace_buffer: torch.Tensor,
    int_workspace_buffer: torch.Tensor,
    plan: dict[str, Any],
    q: torch.Tensor,
    paged_k_cache: torch.Tensor,
    paged_v_cache: torch.Tensor,
    query_indptr: torch.Tensor,
    page_indptr: torch.Tensor,
    pages: torch.Tensor,
    last_page_len: torch.Tensor,
    o: torch.Tensor,
    maybe_lse: torch.Tensor | None,
) -> torch.Tensor:
    """Launch: what ``run`` has checked by now is not looked at again."""
    if STAGED[int_workspace_buffer.data_ptr()] != plan["number"]:
        raise RuntimeError("the workspace holds the plan of another wrapper")
    if not o.is_contiguous():
        raise ValueError("out is not contiguous")
    heads, kv_heads, _, size = plan["heads"]
    page_indptr, last = _plain(page_indptr), _plain(last_page_len)
    if not (page_indptr.equal(plan["page_indptr"]) and last.equal(plan["last_page_len"])):
        raise RuntimeError("lengths on the device are not those planned for")
    query, answer = _plain(q).double(), _plain(o)
    for i, kv_len in enumerate(_lengths(page_indptr, last, size).tolist()):
        begin, end = query_indptr[i : i + 2].tolist()
        table = _plain(pages)[int(page_indptr[i]) : int(page_indptr[i + 1])].long()
        k, v = (
            _plain(cache)[table]
            .double()
            .flatten(0, 1)[:kv_len]
            .repeat_interleave(heads // kv_heads, 1)
            for cache in (paged_k_cache, paged_v_cache)
        )
        scores = torch.einsum("qhd,khd->qhk", query[begin:end], k) * plan["scale"]
        if plan["softcap"]:
            scores = plan["softcap"] * torch.tanh(scores / plan["softcap"])
        at = torch.arange(kv_len)
        now = torch.arange(kv_len - (end - begin), kv_len)[:, None, None]
        if plan["causal"]:
            scores = scores.masked_fill(at > now, -torch.inf)
        if plan["window_left"] >= 0:
            scores = scores.masked_fill(at < now - plan["window_left"], -torch.inf)
        answer[begin:end] = torch.einsum("qhk,khd->qhd", scores.softmax(-1), v).to(o.dtype)
        if maybe_lse is not None:
            maybe_lse[begin:end] = scores.logsumexp(-1) / math.log(2)
    return o


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_subclass(torch.Tensor)


def _lengths(page_indptr: torch.Tensor, last: torch.Tensor, size: int) -> torch.Tensor:
    return (page_indptr[1:] - page_indptr[:-1] - 1) * size + last
