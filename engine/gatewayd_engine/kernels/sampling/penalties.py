"""Repetition, frequency and presence penalties in one Triton kernel.

Memory-bound: five bytes of the tables per logit, and only for batch rows that have entries in them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from gatewayd_hooks.resources import PenaltyColumns

_BLOCK = 2048


def penalise(
    logits: torch.Tensor, lines: torch.Tensor, rows: torch.Tensor, columns: PenaltyColumns
) -> None:
    """See ``base``."""
    if len(lines) == 0:
        return
    vocab = logits.shape[1]
    _penalise[(len(lines), triton.cdiv(vocab, _BLOCK))](
        logits,
        lines,
        rows,
        columns.seen.view(torch.uint8),
        columns.seen_line,
        columns.counts,
        columns.count_line,
        columns.repetition,
        columns.frequency,
        columns.presence,
        vocab,
        logits.stride(0),
        columns.seen.stride(0),
        columns.counts.stride(0),
        BLOCK=_BLOCK,
        num_warps=4,
    )


@triton.jit
def _penalise(
    logits: tl.tensor,
    lines: tl.tensor,
    rows: tl.tensor,
    seen: tl.tensor,
    seen_line: tl.tensor,
    counts: tl.tensor,
    count_line: tl.tensor,
    repetition: tl.tensor,
    frequency: tl.tensor,
    presence: tl.tensor,
    vocab: tl.tensor,
    logits_stride: tl.tensor,
    seen_stride: tl.tensor,
    counts_stride: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    index = tl.program_id(0)
    row = tl.load(rows + index)
    seen_at = tl.load(seen_line + row)
    counts_at = tl.load(count_line + row)
    # -1: the row has no penalties. Its programs end without reading logits.
    if (seen_at >= 0) | (counts_at >= 0):
        token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = token < vocab
        place = logits + tl.load(lines + index).to(tl.int64) * logits_stride + token
        value = tl.load(place, mask=inside, other=0.0).to(tl.float32)
        if seen_at >= 0:
            factor = tl.load(repetition + row)
            was_seen = tl.load(seen + seen_at * seen_stride + token, mask=inside, other=0) != 0
            # Either way the logit decreases if the penalty is above one.
            penalised = tl.where(value > 0.0, value / factor, value * factor)
            value = tl.where(was_seen, penalised, value)
        if counts_at >= 0:
            times = tl.load(counts + counts_at * counts_stride + token, mask=inside, other=0)
            often = times.to(tl.float32) * tl.load(frequency + row)
            value -= often + tl.where(times > 0, tl.load(presence + row), 0.0)
        tl.store(place, value.to(logits.dtype.element_ty), mask=inside)
