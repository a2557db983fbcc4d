"""FlashInfer launches in torch: compute from the plan alone."""

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
    size = plan["heads"][3]
    page_indptr, last = _plain(page_indptr), _plain(last_page_len)
    if not (page_indptr.equal(plan["page_indptr"]) and last.equal(plan["last_page_len"])):
        raise RuntimeError("lengths on the device are not those planned for")
    for i, kv_len in enumerate(_lengths(page_indptr, last, size).tolist()):
        table = _plain(pages)[int(page_indptr[i]) : int(page_indptr[i + 1])].long()
        kv = [
            _plain(cache)[table].flatten(0, 1)[:kv_len] for cache in (paged_k_cache, paged_v_cache)
        ]
        _attend(plan, query_indptr[i : i + 2].tolist(), q, kv, o, maybe_lse)
    return o


def ragged_run(
    float_workspace_buffer: torch.Tensor,
    int_workspace_buffer: torch.Tensor,
    plan: dict[str, Any],
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    query_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    o: torch.Tensor,
    maybe_lse: torch.Tensor | None,
) -> torch.Tensor:
    """The same over keys and values that lie one after another."""
    if STAGED[int_workspace_buffer.data_ptr()] != plan["number"]:
        raise RuntimeError("the workspace holds the plan of another wrapper")
    if not (query_indptr.equal(plan["query_indptr"]) and kv_indptr.equal(plan["kv_indptr"])):
        raise RuntimeError("lengths on the device are not those planned for")
    for i in range(len(kv_indptr) - 1):
        some = slice(*kv_indptr[i : i + 2].tolist())
        kv = [_plain(k)[some], _plain(v)[some]]
        _attend(plan, query_indptr[i : i + 2].tolist(), q, kv, o, maybe_lse)
    return o


def _attend(
    plan: dict[str, Any],
    some: list[int],
    q: torch.Tensor,
    kv: list[torch.Tensor],
    o: torch.Tensor,
    maybe_lse: torch.Tensor | None,
) -> None:
    """Attend the queries of one line."""
    heads, kv_heads = plan["heads"][:2]
    begin, end = some
    query, answer = _plain(q)[begin:end].double(), _plain(o)
    k, v = (half.double().repeat_interleave(heads // kv_heads, 1) for half in kv)
    scores = torch.einsum("qhd,khd->qhk", query, k) * plan["scale"]
    if plan["softcap"]:
        scores = plan["softcap"] * torch.tanh(scores / plan["softcap"])
    at, kv_len = torch.arange(len(k)), len(k)
    now = torch.arange(kv_len - (end - begin), kv_len)[:, None, None]
    if plan["causal"]:
        scores = scores.masked_fill(at > now, -torch.inf)
    if plan["window_left"] >= 0:
        scores = scores.masked_fill(at < now - plan["window_left"], -torch.inf)
    answer[begin:end] = torch.einsum("qhk,khd->qhd", scores.softmax(-1), v).to(o.dtype)
    if maybe_lse is not None:
        maybe_lse[begin:end] = scores.logsumexp(-1) / math.log(2)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_subclass(torch.Tensor)


def _lengths(page_indptr: torch.Tensor, last: torch.Tensor, size: int) -> torch.Tensor:
    return (page_indptr[1:] - page_indptr[:-1] - 1).clamp_min(0) * size + last
