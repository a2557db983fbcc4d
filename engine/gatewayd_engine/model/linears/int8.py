"""W8A8 int8 linear layer for CPUs: per-row scales of weights and activations.

Sums are integers, hence independent of the order of addition, and each row of the batch is
quantized by itself: the product is batch-invariant if its input is.
"""

from __future__ import annotations

import torch

from gatewayd_engine.model.linears.int8_dot import sums
from gatewayd_engine.model.linears.static_scales import codes_of, scales_of
from gatewayd_hooks.quantization import GroupedWeight

_LARGEST = 127
MOST_COLUMNS = (2**31 - 1) // (128 * 128)
"""Sums over more columns may overflow 32 bits."""
LEAST_COLUMNS = 2
"""With one column torch 2.13 returns uninitialised memory."""
_LEAST = torch.finfo(torch.float32).tiny


class Int8Linear:
    """``(codes of x @ codes.T) * scales of x * scales + bias``.

    Args:
        weight: int8 codes with one group, no offsets, at most ``MOST_COLUMNS`` columns.
        bias: float, shape ``[out]``.
        scale: static input scale; None for dynamic per-row scales, which map the largest
            magnitude of a row to 127.
    """

    __slots__ = ("_bias", "_scale", "_scales", "_sums")

    rounds_inputs = True

    def __init__(
        self, weight: GroupedWeight, bias: torch.Tensor | None = None, scale: float | None = None
    ) -> None:
        self._bias = bias
        self._scale = scale
        self._sums = sums(weight.codes)
        self._scales = weight.scales[:, 0].contiguous()

    @property
    def nbytes(self) -> int:
        """See ``LinearOp``."""
        bias = 0 if self._bias is None else self._bias.nbytes
        return self._sums.nbytes + self._scales.nbytes + bias

    def __call__(self, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """See ``LinearOp``."""
        if self._scale is None:
            wide = x.float()
            # Rows of zeros get codes of zero. A NaN stays in its row's scale, and so in outputs.
            scales = wide.abs().amax(-1, keepdim=True).mul_(1 / _LARGEST).clamp_min_(_LEAST)
            made = self._sums(wide.div(scales).round_())
        else:
            scales = scales_of(x, self._scale)
            made = self._sums(codes_of(x, self._scale, torch.int8))
        # First the input's scales, then the weight's, as on a GPU, where the bits are the same.
        if out is None or out.dtype != torch.float32:
            made = torch.mul(made, scales)
        else:
            made = torch.mul(made, scales, out=out)
        made.mul_(self._scales)
        if self._bias is not None:
            made.add_(self._bias)
        if out is None:
            return made.to(x.dtype)
        return out if made is out else out.copy_(made)

    def add_to(self, onto: torch.Tensor, x: torch.Tensor) -> torch.Tensor | None:
        """See ``LinearOp``."""
        onto.add_(self(x))
        return None
