"""Token bitmask of structured outputs, in Triton: logits of forbidden tokens become minus infinity.

Memory-bound, and logits are not read: an allowed token costs one bit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_WORDS = 128
"""Words of the mask that one program processes."""


def mask(logits: torch.Tensor, bitmask: torch.Tensor, lines: torch.Tensor) -> None:
    """See ``base``."""
    if len(lines) == 0:
        return
    _mask[(len(lines), triton.cdiv(bitmask.shape[1], _WORDS))](
        logits,
        bitmask,
        lines,
        logits.shape[1],
        bitmask.shape[1],
        logits.stride(0),
        bitmask.stride(0),
        WORDS=_WORDS,
        num_warps=4,
    )


@triton.jit
def _mask(
    logits: tl.tensor,
    bitmask: tl.tensor,
    lines: tl.tensor,
    vocab: tl.tensor,
    num_words: tl.tensor,
    logits_stride: tl.tensor,
    mask_stride: tl.tensor,
    WORDS: tl.constexpr,
) -> None:
    index = tl.program_id(0).to(tl.int64)
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    words = tl.load(bitmask + index * mask_stride + word, mask=word < num_words, other=0)
    bit = tl.arange(0, 32)[None, :]
    is_forbidden = ((words[:, None] >> bit) & 1) == 0
    token = word[:, None] * 32 + bit
    line = tl.load(lines + index).to(tl.int64)
    nothing = tl.full((WORDS, 32), float("-inf"), tl.float32).to(logits.dtype.element_ty)
    place = logits + line * logits_stride + token
    # The last word may have bits beyond the vocabulary.
    tl.store(place, nothing, mask=is_forbidden & (token < vocab))
