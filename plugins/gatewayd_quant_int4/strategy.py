"""4-bit quantization with sixteen levels from the minimum to the maximum of each column group."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from gatewayd_hooks.quantization import GroupedWeight

if TYPE_CHECKING:
    from gatewayd_hooks.quantization import Matrix, QuantizerResources
    from gatewayd_quant_int4.config import Int4QuantizerConfig

_log = logging.getLogger(__name__)

_STEPS = 15
_HALF = 8
_HEAD = "lm_head"
_LEAST = 2.0**-100
"""Smaller scales would have offsets that 16 bits cannot represent."""
_MOST = torch.finfo(torch.bfloat16).max
_BLOCK = 1 << 20
"""Numbers quantized at once, so that temporaries stay small."""


class Int4Quantizer:
    """Rounds to the nearest of 16 levels.

    Scales and offsets are representable in bfloat16: 4-bit kernels store them in that format, and
    then nothing is rounded twice.

    Args:
        config: its settings.
    """

    def __init__(self, config: Int4QuantizerConfig) -> None:
        self._size = config.group_size
        self._is_symmetric = config.symmetric
        self._takes_head = config.head

    def open(self, resources: QuantizerResources) -> None:
        """Do nothing: the model does not matter."""

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def quantize(self, matrix: Matrix, weight: torch.Tensor) -> GroupedWeight | None:
        """Quantize a matrix; the head only if configured, and only if groups divide the columns.

        Raises:
            ValueError: a number is not finite.
        """
        if matrix.name == _HEAD and not self._takes_head:
            return None
        if matrix.columns % self._size:
            _log.warning(
                "%s not quantized: %d columns are not a multiple of [quantizer.int4] "
                "group_size, %d",
                *(matrix.name, matrix.columns, self._size),
            )
            return None
        kind = torch.int8 if self._is_symmetric else torch.uint8
        codes = torch.empty(weight.shape, dtype=kind, device=weight.device)
        scales = weight.new_empty(matrix.rows, matrix.columns // self._size)
        offsets = None if self._is_symmetric else torch.empty_like(scales)
        step = max(1, _BLOCK // matrix.columns)
        for begin in range(0, matrix.rows, step):
            some = slice(begin, begin + step)
            groups = torch.unflatten(weight[some], 1, (-1, self._size))
            least, most = torch.aminmax(groups, dim=-1)
            if offsets is None:
                # Codes reach from -8 to 7: the largest magnitude is 7.5 steps, half a step from the
                # last code of either sign.
                size = _scale(torch.maximum(most, -least) / (_HALF - 0.5))
                made = groups.div(size.unsqueeze(-1)).round_().clamp_(-_HALF, _HALF - 1)
            else:
                # Zero is within the range: the offset is then at most 16 steps away from it.
                least.clamp_(max=0.0)
                size = _scale((most.clamp_(min=0.0) - least) / _STEPS)
                # 4-bit kernels store the value of code 8 as bfloat16, so that is rounded, and the
                # offset follows.
                middle = (least + _HALF * size).bfloat16().float()
                offset = offsets[some] = middle - _HALF * size
                made = groups.sub(offset.unsqueeze(-1)).div_(size.unsqueeze(-1))
                made.round_().clamp_(0, _STEPS)
            scales[some] = size
            codes[some] = made.flatten(1)
        return GroupedWeight(codes, scales, offsets, bits=4)


def _scale(steps: torch.Tensor) -> torch.Tensor:
    """Round up to the next bfloat16 number.

    Raises:
        ValueError: one is not finite, or too large.
    """
    if not (steps <= _MOST).all():
        raise ValueError("it has numbers that are not finite, or too large")
    bits = steps.clamp_min(_LEAST).view(torch.int32)
    # A bfloat16 is the upper half of a float32; rounding down could leave numbers out of range.
    return ((bits + 0xFFFF) & ~0xFFFF).view(torch.float32)
