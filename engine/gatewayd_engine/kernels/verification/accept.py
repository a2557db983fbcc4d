"""Acceptance of draft tokens, in one Triton kernel.

Latency-bound: a program walks the path of one sequence, with all of its slots in registers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_SLOTS = 64
"""Most slots of a sequence: more rarely pay off, and one kernel is compiled for all widths."""


def accept(
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
    if lines == 0:
        return
    _accept[(lines,)](
        sampled,
        best,
        drafts,
        parents,
        first,
        counts,
        rows,
        last_tokens,
        packed,
        packed.stride(0),
        width,
        SLOTS=_SLOTS,
        num_warps=1,
    )


@triton.jit(do_not_specialize=["stride", "width"])
def _accept(
    sampled: tl.tensor,
    best: tl.tensor,
    drafts: tl.tensor,
    parents: tl.tensor,
    first: tl.tensor,
    counts: tl.tensor,
    rows: tl.tensor,
    last_tokens: tl.tensor,
    packed: tl.tensor,
    stride: tl.tensor,
    width: tl.tensor,
    SLOTS: tl.constexpr,
) -> None:
    line = tl.program_id(0).to(tl.int64)
    count = tl.load(counts + line)
    slot = tl.arange(0, SLOTS)
    at = tl.load(first + line) + slot
    is_own = slot < count
    is_draft = is_own & (slot > 0)
    token = tl.load(sampled + at, mask=is_own, other=-1)
    value = tl.load(best + at, mask=is_own, other=0.0)
    guessed = tl.load(drafts + at, mask=is_draft, other=-1)
    # Parents of slot 0 and of padding are -1, which no node is, so a walk never reaches them.
    before = tl.load(parents + at, mask=is_draft, other=-1)

    # The comparison is false for NaN as well as for infinities.
    is_bad = tl.max(tl.where(tl.abs(value) < float("inf"), 0, 1), 0)
    goes_on = tl.where((is_bad == 0) & (count > 0), 1, 0)
    # Slot 0 is always on the path: the token after it needs no draft.
    length, node = goes_on, 0
    path = tl.zeros((SLOTS,), tl.int32)
    chosen = tl.sum(tl.where(slot == 0, token, 0), 0)
    # Each step looks for the child whose draft is what the model sampled after the current node.
    for depth in range(1, width):
        fits = (before == node) & (guessed == chosen) & (goes_on != 0)
        # SLOTS is no slot: no child has that token, and the walk ends.
        child = tl.min(tl.where(fits, slot, SLOTS), 0)
        goes_on = tl.where(child < SLOTS, 1, 0)
        node = tl.where(goes_on != 0, child, node)
        path = tl.where((slot == depth) & (goes_on != 0), node, path)
        chosen = tl.sum(tl.where(slot == node, token, 0), 0)
        length += goes_on

    place = packed + line * stride
    tl.store(place, length)
    tl.store(place + 1 + slot, token, mask=slot < width)
    tl.store(place + 1 + width + slot, path, mask=slot < width)
    # The token after the last node on the path is the row's next input.
    tl.store(last_tokens + tl.load(rows + line), chosen, mask=length > 0)
