"""Products of inputs that are rounded to codes with one scale for all, as a checkpoint says.

The scale was seen in texts beforehand: no row is looked at, and what is beyond the largest code
becomes that.
"""

from __future__ import annotations

import torch

from gatewayd_engine.model.batch_invariance import Unsteady
from gatewayd_engine.model.layers import LinearOp
from gatewayd_hooks.quantization import StaticWeight

TYPES = {"int8": torch.int8, "e4m3": torch.float8_e4m3fn}
_LEAST_NORMAL, _SHIFT = 2.0**-6, 1.5 * 2**20
"""Of e4m3: below the first codes are as far apart as above it; the second makes of a power of two
the number whose neighbours are an eighth of that power away, on both sides."""
_EXPONENT = 0x7F800000
_FEW = 1 << 12
"""Numbers that torch's own casts round as fast on a CPU: they are fewer calls."""
_BOUNDS = {torch.int8: (-128.0, 127.0), torch.float8_e4m3fn: (-448.0, 448.0)}


def codes_of(x: torch.Tensor, scale: float, codes: torch.dtype) -> torch.Tensor:
    """The nearest codes of ``x / scale``, in the same shape; float32 for integers."""
    least, most = _BOUNDS[codes]
    made = x.float().div(scale)
    if codes == torch.int8:
        return made.round_().clamp_(least, most)
    return made.clamp_(least, most).to(codes)


def rounded(x: torch.Tensor, scale: float, codes: torch.dtype) -> torch.Tensor:
    """The numbers of the nearest codes of ``x / scale``, in the same shape and type."""
    if codes == torch.int8 or x.is_cuda or x.numel() <= _FEW:
        return codes_of(x, scale, codes).to(x.dtype)
    # Torch's own casts on a CPU give the same; of many numbers they take several times as long.
    least, most = _BOUNDS[codes]
    made = x.float().div(scale).clamp_(least, most)
    # A float so much larger that its last bit is the last one of the code rounds where it is added.
    above = made.abs().clamp_min_(_LEAST_NORMAL).view(torch.int32).bitwise_and_(_EXPONENT)
    shift = above.view(torch.float32).mul_(_SHIFT)
    return made.add_(shift).sub_(shift).to(x.dtype)


def scales_of(x: torch.Tensor, scale: float) -> torch.Tensor:
    """The scale for each row, float32 ``[n, 1]``; no number for one that has what is none."""
    return x.sum(-1, keepdim=True, dtype=torch.float32).mul_(0.0).add_(scale)


class StaticLinear(Unsteady):
    """``(codes of x @ weight.T) * scale + bias``.

    Args:
        linear: a product with the weight, without a bias.
        weight: what its inputs are rounded to.
        bias: float, shape ``[out]``.
    """

    __slots__ = ("_bias", "_linear", "_scale", "_type")
    rounds_inputs = True

    def __init__(self, linear: LinearOp, weight: StaticWeight, bias: torch.Tensor | None) -> None:
        self._linear = linear
        self._type = TYPES[weight.activations]
        self._scale = weight.scale
        self._bias = bias
        super().__init__()

    @property
    def is_steady(self) -> bool:
        """Whether the sums are."""
        return isinstance(self._linear, Unsteady) and self._linear.is_steady

    @is_steady.setter
    def is_steady(self, value: bool) -> None:
        if isinstance(self._linear, Unsteady):
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
