"""Verification kernels of speculative decoding in torch."""

from __future__ import annotations

import torch


class TorchVerification:
    """Straightforward torch implementation of ``VerificationKernels``."""

    def slots(
        self,
        rows: torch.Tensor,
        counts: torch.Tensor,
        starts: torch.Tensor,
        page_indptr: torch.Tensor,
        given: torch.Tensor,
        depths: torch.Tensor,
        last_tokens: torch.Tensor,
        block_table: torch.Tensor,
        page_size: int,
        scratch: int,
        ids: torch.Tensor,
        positions: torch.Tensor,
        write: torch.Tensor,
        pages: torch.Tensor,
    ) -> None:
        """See ``base``."""
        lines = len(rows)
        slot = torch.arange(len(ids) // lines, device=rows.device)
        is_real = slot < counts.unsqueeze(1)
        row, start = rows.long().unsqueeze(1), starts.long().unsqueeze(1)
        uploaded = given.view(lines, -1)
        chosen = torch.where(uploaded >= 0, uploaded, last_tokens[row])
        ids.copy_(torch.where(is_real, chosen, 0).flatten())
        positions.copy_(torch.where(is_real, start + depths.view(lines, -1), 0).flatten())
        place = torch.where(is_real, start + slot, slot)
        # Padding looks up the row's first page, a valid index, and then gets the scratch page.
        page = torch.where(is_real, block_table[row, (place // page_size) * is_real], scratch)
        write.copy_((page.long() * page_size + place % page_size).flatten())
        at = torch.arange(block_table.shape[1], device=rows.device)
        begins = page_indptr[:-1].unsqueeze(1)
        has = at < page_indptr[1:].unsqueeze(1) - begins
        pages[(begins + at)[has].long()] = block_table[rows.long()][has]

    def accept(
        self,
        sampled: torch.Tensor,
        best: torch.Tensor,
        drafts: torch.Tensor,
        parents: torch.Tensor,
        first: torch.Tensor,
        counts: torch.Tensor,
        rows: torch.Tensor,
        last_tokens: torch.Tensor,
        packed: torch.Tensor,
    ) -> None:
        """See ``base``."""
        lines, width = len(packed), packed.shape[1] // 2
        slot = torch.arange(width, device=sampled.device)
        is_own = slot < counts.unsqueeze(1)
        at = torch.where(is_own, first.unsqueeze(1) + slot, 0).long()
        tokens = torch.where(is_own, sampled[at], -1)
        is_draft = is_own & (slot > 0)
        guessed = torch.where(is_draft, drafts[at], -1)
        before = torch.where(is_draft, parents[at], -1)
        goes_on = (torch.isfinite(best[at]) | ~is_own).all(1) & (counts > 0)
        length, node = goes_on.int(), torch.zeros(lines, dtype=torch.long, device=sampled.device)
        path = torch.zeros_like(tokens)
        for depth in range(1, width):
            chosen = tokens.gather(1, node.unsqueeze(1))
            fits = (before == node.unsqueeze(1)) & (guessed == chosen) & goes_on.unsqueeze(1)
            goes_on = fits.any(1)
            node = torch.where(goes_on, fits.int().argmax(1), node)
            path[:, depth] = torch.where(goes_on, node, 0)
            length += goes_on
        packed[:, 0] = length
        packed[:, 1 : 1 + width] = tokens
        packed[:, 1 + width :] = path
        last = tokens.gather(1, node.unsqueeze(1)).squeeze(1)
        index = rows.long()
        # Rows that get no token are left unchanged.
        last_tokens[index] = torch.where(length > 0, last, last_tokens[index])

    def compact_path(
        self,
        packed: torch.Tensor,
        rows: torch.Tensor,
        starts: torch.Tensor,
        block_table: torch.Tensor,
        pool: torch.Tensor,
    ) -> None:
        """See ``base``."""
        width, size = packed.shape[1] // 2, pool.shape[3]
        # Moved as bytes: not every dtype of a KV pool supports indexed writes.
        raw = pool.view(torch.uint8)
        line = torch.arange(len(packed), device=packed.device)
        row, start = rows.long(), starts.long()
        for rank in range(1, width):
            # In order: the target of one token may be the source of an earlier one.
            node = packed[:, 1 + width + rank].long()
            moves = (packed[:, 0] > rank) & (node != rank)
            of = line[moves]
            source, target = (start + node)[of], (start + rank)[of]
            page, to = (block_table[row[of], at // size].long() for at in (source, target))
            raw[to, :, :, target % size] = raw[page, :, :, source % size]
