"""Paged decode and prompt attention in torch: the reference for the Triton kernels.

As in the kernel, shapes follow from the input tensors without device synchronisation: each query is
compared with the tokens of all pages, and those of other sequences are masked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from gatewayd_engine.kernels.attention.splits import SharedPages


def decode_attention(
    query: torch.Tensor,
    keys_values: torch.Tensor,
    page_indptr: torch.Tensor,
    pages: torch.Tensor,
    last_page_len: torch.Tensor,
    out: torch.Tensor,
    *,
    scale: float,
    softcap: float | None,
    window: int,
    sinks: torch.Tensor | None,
    width: int,
    num_queries: torch.Tensor | None,
    ancestors: torch.Tensor | None,
    splits: int,
    scratch: torch.Tensor | None,
    shared: SharedPages | None = None,
    chunked: bool = False,
) -> None:
    """See ``base``."""
    tokens, num_heads = query.shape[:2]
    lines, page_size, kv_heads = len(last_page_len), *keys_values.shape[2:4]
    device = query.device
    # For each page of the table: its sequence, and the position of its first token.
    place = torch.arange(len(pages), dtype=torch.int32, device=device)
    line = torch.searchsorted(page_indptr[1:].contiguous(), place, right=True)
    # ``pages`` may be longer than the table of this step: its rest belongs to no sequence.
    own_line = line.clamp_max(lines - 1)
    offset = torch.arange(page_size, device=device)
    at = ((place - page_indptr[own_line]) * page_size).unsqueeze(1) + offset
    lengths = (page_indptr[1:] - page_indptr[:-1] - 1) * page_size + last_page_len
    # The table may begin with pages of other sequences, whose positions are negative.
    is_inside = (at >= 0) & (at < lengths[own_line].unsqueeze(1))
    is_held = ((line < lines).unsqueeze(1) & is_inside).flatten()
    at, own = at.flatten(), own_line.repeat_interleave(page_size)

    if shared is not None:
        # All sequences read the shared prefix from the pages of the first one.
        which = place - page_indptr[own_line]
        first = pages[(page_indptr[0] + which).clamp(0, len(pages) - 1).long()]
        pages = torch.where(which < shared.num_pages, first, pages)
    # Entries beyond the table are undefined, but must be valid indices.
    read = pages.long().clamp(0, len(keys_values) - 1)
    if keys_values.dtype.itemsize == 1:
        # Indexed as bytes: torch does not implement indexing for every 8-bit float dtype.
        read_pages = keys_values.view(torch.uint8)[read].view(keys_values.dtype)
    else:
        read_pages = keys_values[read]
    # Masked tokens may contain NaN.
    held = is_held.view(-1, 1, page_size, 1, 1)
    halves = torch.where(held, read_pages.float(), 0.0)
    # Of one part, values are the beginnings of keys.
    keys, values = halves[:, 0], halves[:, -1, ..., : out.shape[2]]
    group = num_heads // kv_heads
    k = keys.flatten(0, 1).repeat_interleave(group, 1)
    v = values.flatten(0, 1).repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->qhk", query.float(), k) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)

    counts = lengths.new_full((lines,), width) if num_queries is None else num_queries
    starts = (lengths - counts).repeat_interleave(width).unsqueeze(1)
    slot = torch.arange(width, device=device).repeat(lines).unsqueeze(1)
    back = at - starts
    if ancestors is None:
        position = starts + slot
        seen = at <= position
        apart = position - at
    else:
        bits = ancestors.unsqueeze(1) >> torch.arange(width, device=device) & 1
        # Number of visible queries after each slot: the distance between the two in the tree.
        behind = bits.flip(1).cumsum(1).flip(1) - bits
        index = back.clamp(0, width - 1)
        seen = (back < 0) | (bits.gather(1, index) == 1)
        # Before this step positions count one by one; within it, the distance is that in the tree.
        depth = bits.sum(1, keepdim=True) - 1
        position = starts + depth
        apart = torch.where(back < 0, depth - back, behind.gather(1, index))
    if window:
        reach = position % window if chunked else window - 1
        seen = seen & (apart <= reach)
    mine = torch.arange(lines, device=device).repeat_interleave(width).unsqueeze(1)
    seen = seen & is_held & (own == mine) & (slot < counts.repeat_interleave(width).unsqueeze(1))
    scores = scores.masked_fill(~seen.unsqueeze(1), -torch.inf)
    if sinks is None:
        # The output of queries that see nothing is zero.
        weights = scores.softmax(-1).masked_fill(~seen.any(1).view(-1, 1, 1), 0.0)
    else:
        sink = sinks.float().view(1, -1, 1).expand(tokens, -1, 1)
        weights = torch.cat((scores, sink), -1).softmax(-1)[..., :-1]
    out.copy_(torch.einsum("qhk,khd->qhd", weights, v))


def prompt_attention(
    query: torch.Tensor,
    keys_values: torch.Tensor,
    query_indptr: torch.Tensor,
    page_indptr: torch.Tensor,
    pages: torch.Tensor,
    last_page_len: torch.Tensor,
    out: torch.Tensor,
    *,
    scale: float,
    softcap: float | None,
    window: int,
    sinks: torch.Tensor | None,
    first: int,
    most_queries: int,
    chunked: bool = False,
) -> None:
    """See ``base``: decode attention of as many queries for each sequence as the longest has."""
    begins, ends = query_indptr[first:-1].long(), query_indptr[first + 1 :].long()
    slot = torch.arange(most_queries, device=query.device)
    # The rest of a shorter sequence is padding, read from any valid place.
    index = (begins.unsqueeze(1) + slot).clamp_max(len(query) - 1)
    padded = out.new_empty(index.numel(), *out.shape[1:])
    decode_attention(
        query[index.flatten()],
        keys_values,
        page_indptr[first:],
        pages,
        last_page_len[first:],
        padded,
        scale=scale,
        softcap=softcap,
        window=window,
        sinks=sinks,
        width=most_queries,
        num_queries=ends - begins,
        ancestors=None,
        splits=1,
        scratch=None,
        chunked=chunked,
    )
    token = torch.arange(len(query), device=query.device)
    line = torch.searchsorted(query_indptr[first + 1 :].contiguous(), token, right=True)
    line = line.clamp_max(len(begins) - 1)
    place = line * most_queries + (token - begins[line]).clamp_min(0)
    is_there = (token >= begins[0]) & (token < ends[-1])
    out.copy_(torch.where(is_there.view(-1, 1, 1), padded[place.clamp_max(len(padded) - 1)], out))
