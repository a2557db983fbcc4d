"""FP8 quantization with a scale for each row, matrix or block."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import safe_open

from gatewayd_hooks.quantization import GroupedWeight

BLOCK = 128
LARGEST = 448.0


def in_blocks(folder: Path, names: Sequence[str]) -> bool:
    """Whether a checkpoint's matrices consist of whole blocks, as vLLM requires of merged ones."""
    left = {f"{name}.weight" for name in names}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            found = left.intersection(file.keys())
            if any(size % BLOCK for name in found for size in file.get_slice(name).get_shape()):
                return False
            left -= found
    return not left


def nearest(weight: torch.Tensor, rows: int, columns: int) -> GroupedWeight:
    """Round a matrix so that the largest number of each block becomes the largest code.

    Args:
        weight: float32, shape ``[rows, columns]``; not modified.
        rows: of a block.
        columns: of a block.

    Raises:
        ValueError: a number is not finite.
    """
    height, width = weight.shape
    tall, wide = -(-height // rows), -(-width // columns)
    padded = weight.new_zeros(tall * rows, wide * columns)
    padded[:height, :width] = weight
    largest = padded.view(tall, rows, wide, columns).abs().amax((1, 3))
    if not largest.isfinite().all():
        raise ValueError("it has numbers that are not finite")
    # Subnormal scales would be too coarse to divide by.
    scales = (largest / LARGEST).clamp_(min=torch.finfo(torch.float32).tiny)
    scales = scales.repeat_interleave(rows, 0)[:height]
    group_of = None
    if width % columns and wide > 1:
        group_of = torch.arange(width, dtype=torch.int32) // columns
    spread = scales.repeat_interleave(columns, 1)[:, :width]
    return GroupedWeight(
        (weight / spread).to(torch.float8_e4m3fn), scales.contiguous(), group_of=group_of
    )
