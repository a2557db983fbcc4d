"""What a step reads on the device, and what its attention is planned from on the host."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class HostPlan:
    """Sizes of a step's lines, on the host: planning must not ask the device.

    All are int32 CPU tensors, pinned where there is a device; nobody writes to them before the
    step has been planned.

    Attributes:
        num_decode: lines that compute one token; they come first.
        query_indptr: where each line's tokens begin, shape ``[lines + 1]``.
        page_indptr: where each line's pages begin, shape ``[lines + 1]``.
        last_page_len: tokens in each line's last page after this step, shape ``[lines]``.
        shared_pages: how many pages all of the lines that compute one token begin with, each
            full before this step; 0 if nobody looked.
        longest: tokens of the longest line after this step.
    """

    num_decode: int
    query_indptr: torch.Tensor
    page_indptr: torch.Tensor
    last_page_len: torch.Tensor
    shared_pages: int = 0
    longest: int = 0

    @property
    def num_lines(self) -> int:
        """Sequences of the step, padding included."""
        return len(self.last_page_len)


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Tensors on the device; those of a captured step keep their addresses.

    Attributes:
        ids: of the tokens, int64, shape ``[num_tokens]``.
        positions: int64, shape ``[num_tokens]``.
        write: where each token's keys and values go: page * page size + offset, int64, shape
            ``[num_tokens]``.
        page_indptr: as in the host's plan, int32, shape ``[lines + 1]``.
        pages: int32, one line's after another's, at least ``page_indptr[-1]`` of them.
        last_page_len: as in the host's plan, int32, shape ``[lines]``.
        host: the plan.
        shared_pages: as in the host's plan, int32, shape ``[1]``; None if that was not computed.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    write: torch.Tensor
    page_indptr: torch.Tensor
    pages: torch.Tensor
    last_page_len: torch.Tensor
    host: HostPlan
    shared_pages: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class SlotInputs:
    """Tensors of ``lines`` lines of ``width`` slots, which keep their addresses.

    Attributes:
        step: ids, positions, where keys and values go, and pages. Nothing is planned from its
            host part.
        rows, counts, starts: see ``VerificationKernels.slots``, int32, shape ``[lines]``.
        given, depths: see ``VerificationKernels.slots``, int32, shape ``[lines * width]``.
        ancestors: bit j is set where a slot sees slot j of its line, int64, shape
            ``[lines * width]``.
        width: slots of each line.
    """

    step: StepInputs
    rows: torch.Tensor
    counts: torch.Tensor
    starts: torch.Tensor
    given: torch.Tensor
    depths: torch.Tensor
    ancestors: torch.Tensor
    width: int
