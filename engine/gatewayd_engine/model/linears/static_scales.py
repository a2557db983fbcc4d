"""Linear layers with static input scales, as calibrated checkpoints have them.

Inputs are quantized with one scale from the checkpoint, whatever their range: values beyond the
largest code are clamped to it.
"""

from __future__ import annotations

import torch

from gatewayd_engine.model.batch_invariance import BatchInvariantMode
from gatewayd_engine.model.layers import LinearOp
from gatewayd_hooks.quantization import StaticWeight

TYPES = {"int8": torch.int8, "e4m3": torch.float8_e4m3fn}
_LEAST_NORMAL, _SHIFT = 2.0**-6, 1.5 * 2**20
"""Of e4m3: the smallest normal number, below which codes are evenly spaced; and the factor that
turns a power of two into a float whose neighbours on both sides are an eighth of it away."""
_EXPONENT = 0x7F800000
_FEW = 1 << 12
"""Elements up to which torch's own casts are as fast on a CPU, because they take fewer calls."""
_BOUNDS = {torch.int8: (-128.0, 127.0), torch.float8_e4m3fn: (-448.0, 448.0)}


def codes_of(x: torch.Tensor, scale: float, codes: torch.dtype) -> torch.Tensor:
    """Round ``x / scale`` to the nearest codes, in the same shape; float32 for integers."""
    least, most = _BOUNDS[codes]
    made = x.float().div(scale)
    if codes == torch.int8:
        return made.round_().clamp_(least, most)
    # Clamped first: torch's cast to e4m3 makes NaN of what is beyond the largest code.
    return made.clamp_(least, most).to(codes)


def rounded(x: torch.Tensor, scale: float, codes: torch.dtype) -> torch.Tensor:
    """Round ``x / scale`` to the values of the nearest codes, in the same shape and dtype."""
    if codes == torch.int8 or x.is_cuda or x.numel() <= _FEW:
        return codes_of(x, scale, codes).to(x.dtype)
    # Torch's own casts give the same result, but take several times as long on a CPU.
    least, most = _BOUNDS[codes]
    made = x.float().div(scale).clamp_(least, most)
    # Adding a float whose last bit has the value of the code's last bit rounds to that bit.
    above = made.abs().clamp_min_(_LEAST_NORMAL).view(torch.int32).bitwise_and_(_EXPONENT)
    shift = above.view(torch.float32).mul_(_SHIFT)
    return made.add_(shift).sub_(shift).to(x.dtype)


def scales_of(x: torch.Tensor, scale: float) -> torch.Tensor:
    """Return the scale of each row, float32 ``[n, 1]``; NaN for rows with a NaN or an infinity."""
    # Zero times a NaN or an infinity is NaN.
    return x.sum(-1, keepdim=True, dtype=torch.float32).mul_(0.0).add_(scale)


class StaticLinear(BatchInvariantMode):
    """``(codes of x @ weight.T) * scale + bias`` around any linear layer of the weight.

    Args:
        linear: linear layer of the weight, without bias.
        weight: gives the scale and the code type of the inputs.
        bias: float, shape ``[out]``.
    """

    __slots__ = ("_bias", "_linear", "_scale", "_type")
    rounds_inputs = True

    def __init__(self, linear: LinearOp, weight: StaticWeight, bias: torch.Tensor | None) -> None:
        self._linear = linear
        self._type = TYPES[weight.activations]
        self._scale = weight.scale
        self._bias = bias
        # Last: it sets ``is_steady``, which is passed on to the wrapped layer.
        super().__init__()

    @property
    def is_steady(self) -> bool:
        """Whether the wrapped linear layer is batch-invariant."""
        return isinstance(self._linear, BatchInvariantMode) and self._linear.is_steady

    @is_steady.setter
    def is_steady(self, value: bool) -> None:
        if isinstance(self._linear, BatchInvariantMode):
            self._linear.is_steady = value

    @property
    def nbytes(self) -> int:
        """See ``LinearOp``."""
        return self._linear.nbytes + (0 if self._bias is None else self._bias.nbytes)

    def __call__(self, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """See ``LinearOp``."""
        made = self._linear(rounded(x, self._scale, self._type), out=out)
        made.mul_(self._scale)
        return made if self._bias is None else made.add_(self._bias)

    def add_to(self, onto: torch.Tensor, x: torch.Tensor) -> torch.Tensor | None:
        """See ``LinearOp``."""
        onto.add_(self(x))
        return None
