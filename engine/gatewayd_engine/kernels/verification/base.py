"""The kernels that verify drafts: inputs of padded lines, acceptance, moves of accepted tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class Verifying(Protocol):
    """Kernels of steps whose lines have several *slots*: a last token, then its drafts.

    Slot 0 of a line is its last token, slot ``i`` its draft ``i - 1``. Lines are padded to
    ``width`` slots where a step is captured.
    """

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
        """Make the inputs of lines that are padded to equally many slots.

        A padding slot has token 0 at position 0 and writes to the scratch page.

        Args:
            rows: each line's row, int32, shape ``[lines]``.
            counts: slots of each line that are no padding, at least 1, int32, shape ``[lines]``.
            starts: position of each line's first slot, int32, shape ``[lines]``.
            page_indptr: where each line's pages begin, int32, shape ``[lines + 1]``.
            given: ids of the slots' tokens, -1 for the last token of the line's row, int32, shape
                ``[lines * width]``.
            depths: how far behind its line's first slot the token of each slot stands, int32,
                shape ``[lines * width]``.
            last_tokens: int32, shape ``[rows]``.
            block_table: int32, shape ``[rows, max_pages]``.
            page_size: tokens per page.
            scratch: the page that no sequence has.
            ids: filled, int64, shape ``[lines * width]``.
            positions: filled with start + depth, int64, shape ``[lines * width]``.
            write: filled with page * page size + offset of start + slot, int64, shape
                ``[lines * width]``.
            pages: filled with one line's pages after another's, int32, at least
                ``[page_indptr[-1]]``.
        """

    def accept(
        self,
        said: torch.Tensor,
        best: torch.Tensor,
        drafts: torch.Tensor,
        parents: torch.Tensor,
        first: torch.Tensor,
        counts: torch.Tensor,
        rows: torch.Tensor,
        last_tokens: torch.Tensor,
        packed: torch.Tensor,
    ) -> None:
        """Find which drafts the model has chosen itself: the longest path of them from slot 0.

        Drafts that were chosen, not drawn: the model's token after a slot is kept, and verification
        goes on at the child that foresaw it, if there is one. For tokens drawn by a key of row and
        position this is exact, not only in distribution (Leviathan et al. 2023, arXiv 2211.17192,
        for a draft distribution of one token; trees as in SpecInfer, arXiv 2305.09781).

        Args:
            said: the model's token after each slot, int32, shape ``[n]``.
            best: the largest logit of each slot, float32, shape ``[n]``.
            drafts: tokens of the slots, int32; those of slots 0 are not read, shape ``[n]``.
            parents: slot of the same line before each, int32; those of slots 0 are not read,
                shape ``[n]``.
            first: where each line's slots begin, int32, shape ``[lines]``.
            counts: slots of each line, at most ``width``; 0 for lines that get no tokens, int32,
                shape ``[lines]``.
            rows: of the lines, int32, shape ``[lines]``.
            last_tokens: the last token of each line that gets any is written here, int32, shape
                ``[rows]``.
            packed: filled, int32, shape ``[lines, 1 + 2 * width]``: how many tokens the line gets,
                0 where a largest logit is not finite; the model's token after each slot, -1 behind
                the last; the slots on the path, 0 behind the last: token ``i`` of the line is what
                the model said after slot ``path[i]``.
        """

    def keep_path(
        self,
        packed: torch.Tensor,
        rows: torch.Tensor,
        starts: torch.Tensor,
        block_table: torch.Tensor,
        pool: torch.Tensor,
    ) -> None:
        """Move keys and values of accepted drafts of trees to where their tokens belong.

        The draft of slot ``path[i]`` was written as token ``start + path[i]``; it is token
        ``start + i``.

        Args:
            packed: of ``accept``.
            rows: of the lines, int32, shape ``[lines]``.
            starts: position of each line's first slot, int32, shape ``[lines]``.
            block_table: int32, shape ``[rows, max_pages]``.
            pool: shape ``[pages, layers, 2, page_size, kv_heads, head_dim]``, contiguous.
        """
