"""Protocol of the verification kernels of speculative decoding.

They build inputs of padded sequences, accept draft tokens, and compact KV slots of accepted paths.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class VerificationKernels(Protocol):
    """Kernels of steps in which a sequence has several *slots*: its last token, then its drafts.

    Slot 0 of a sequence is its last token, slot ``i`` its draft token ``i - 1``. Sequences are
    padded to ``width`` slots where a step is captured. See ``kernels.base`` for rows.
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
        """Build the inputs of sequences that are padded to the same number of slots.

        A padding slot has token 0 at position 0 and writes to the scratch page.

        Args:
            rows: row of each sequence, int32, shape ``[sequences]``.
            counts: slots of each sequence that are not padding, at least 1, int32, shape
                ``[sequences]``.
            starts: position of each sequence's first slot, int32, shape ``[sequences]``.
            page_indptr: where each sequence's pages begin, int32, shape ``[sequences + 1]``.
            given: token ids of the slots, -1 for the last token of the sequence's row, int32,
                shape ``[sequences * width]``.
            depths: depth of each slot in its draft tree: the distance of its position from that of
                slot 0, int32, shape ``[sequences * width]``.
            last_tokens: int32, shape ``[rows]``.
            block_table: int32, shape ``[rows, max_pages]``.
            page_size: tokens per page.
            scratch: page that belongs to no sequence.
            ids: filled, int64, shape ``[sequences * width]``.
            positions: filled with start + depth, int64, shape ``[sequences * width]``.
            write: filled with KV slots: page * page size + offset of start + slot, int64, shape
                ``[sequences * width]``.
            pages: filled with the pages of one sequence after another, int32, at least
                ``[page_indptr[-1]]``.
        """

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
        """Accept the longest path of draft tokens, from slot 0, that match the model's tokens.

        For deterministic drafts, without draft probabilities: the model's token after a slot is
        accepted, and verification continues at the child slot with that token, if there is one.
        For tokens sampled by a key of row and position the output is exactly that of decoding
        without drafts, not only equal in distribution (Leviathan et al. 2023, arXiv 2211.17192, for
        a draft distribution of one token; trees as in SpecInfer, arXiv 2305.09781).

        Args:
            sampled: the model's token after each slot, int32, shape ``[n]``.
            best: the largest logit of each slot, float32, shape ``[n]``.
            drafts: tokens of the slots, int32; those of slots 0 are not read, shape ``[n]``.
            parents: parent slot of each slot, within its sequence, int32; those of slots 0 are not
                read, shape ``[n]``.
            first: where each sequence's slots begin, int32, shape ``[sequences]``.
            counts: slots of each sequence, at most ``width``; 0 for sequences that get no tokens,
                int32, shape ``[sequences]``.
            rows: row of each sequence, int32, shape ``[sequences]``.
            last_tokens: receives the last token of each sequence that gets any, int32, shape
                ``[rows]``.
            packed: filled, int32, shape ``[sequences, 1 + 2 * width]``: the number of tokens of the
                sequence, 0 where a largest logit is not finite; the model's token after each slot,
                -1 after the last; the slots on the path, 0 after the last: token ``i`` of the
                sequence is the model's token after slot ``path[i]``.
        """

    def compact_path(
        self,
        packed: torch.Tensor,
        rows: torch.Tensor,
        starts: torch.Tensor,
        block_table: torch.Tensor,
        pool: torch.Tensor,
    ) -> None:
        """Compact the keys and values of accepted tree paths to consecutive KV slots.

        The draft of slot ``path[i]`` was written at position ``start + path[i]``; it is moved to
        position ``start + i``.

        Args:
            packed: output of ``accept``.
            rows: row of each sequence, int32, shape ``[sequences]``.
            starts: position of each sequence's first slot, int32, shape ``[sequences]``.
            block_table: int32, shape ``[rows, max_pages]``.
            pool: shape ``[pages, layers, 2, page_size, kv_heads, head_dim]``, contiguous.
        """
