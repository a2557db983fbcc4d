"""Inputs of a step: tensors on the device, and the host's plan of its attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class HostPlan:
    """Sizes of a step's sequences, on the host: planning must not synchronise with the device.

    All are int32 CPU tensors, pinned where there is a device; they must not be modified before the
    step has been planned.

    Attributes:
        num_decode: sequences that compute one token; they come first.
        query_indptr: where each sequence's tokens begin, shape ``[sequences + 1]``.
        page_indptr: where each sequence's pages begin, shape ``[sequences + 1]``.
        last_page_len: tokens in each sequence's last page after this step, shape ``[sequences]``.
        shared_pages: number of pages of the prefix that all decoding sequences share, each full
            before this step; 0 if it was not determined.
        longest: context length of the longest sequence after this step.
    """

    num_decode: int
    query_indptr: torch.Tensor
    page_indptr: torch.Tensor
    last_page_len: torch.Tensor
    shared_pages: int = 0
    longest: int = 0

    @property
    def num_lines(self) -> int:
        """Sequences of the step, including padding."""
        return len(self.last_page_len)


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Device tensors of a step; those of a captured step keep their addresses.

    Attributes:
        ids: token ids, int64, shape ``[num_tokens]``.
        positions: int64, shape ``[num_tokens]``.
        write: KV slot of each token: page * page size + offset, int64, shape ``[num_tokens]``.
        page_indptr: as in the host's plan, int32, shape ``[sequences + 1]``.
        pages: int32, pages of one sequence after another, at least ``page_indptr[-1]`` of them.
        last_page_len: as in the host's plan, int32, shape ``[sequences]``.
        host: plan on the host.
        shared_pages: as in the host's plan, int32, shape ``[1]``; None if not computed.
        query_indptr: as in the host's plan, int32, shape ``[sequences + 1]``; None in steps without
            prompts.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    write: torch.Tensor
    page_indptr: torch.Tensor
    pages: torch.Tensor
    last_page_len: torch.Tensor
    host: HostPlan
    shared_pages: torch.Tensor | None = None
    query_indptr: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class SlotInputs:
    """Device tensors of sequences with ``width`` slots each, which keep their addresses.

    Attributes:
        step: ids, positions, KV slots and pages. Its host plan is not used.
        rows, counts, starts: see ``VerificationKernels.slots``, int32, shape ``[sequences]``.
        given, depths: see ``VerificationKernels.slots``, int32, shape ``[sequences * width]``.
        ancestors: tree-attention mask: bit j is set where a slot sees slot j of its sequence,
            int64, shape ``[sequences * width]``.
        width: slots of each sequence.
    """

    step: StepInputs
    rows: torch.Tensor
    counts: torch.Tensor
    starts: torch.Tensor
    given: torch.Tensor
    depths: torch.Tensor
    ancestors: torch.Tensor
    width: int
