"""Weight-only quantized linear layers on torch's packed CPU kernels, with bfloat16 activations.

The kernels multiply each row of the batch by itself, so products are batch-invariant, and so are
their inputs in decoders that have such products (ADR 0035).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from gatewayd_hooks.quantization import GroupedWeight

_BYTE_COLUMNS = 32
"""The int8 kernel reads out of bounds unless rows are a multiple of this."""


class PackedLinear(ABC):
    """Base of linear layers on packed kernels.

    Args:
        bias: float, shape ``[out]``.
        tensors: of the weight, to be counted in ``nbytes``.
    """

    __slots__ = ("_bias", "nbytes")

    rounds_inputs = True

    def __init__(self, bias: torch.Tensor | None, *tensors: torch.Tensor | None) -> None:
        self._bias = bias
        all_tensors = (*tensors, bias)
        self.nbytes = sum(tensor.nbytes for tensor in all_tensors if tensor is not None)

    def __call__(self, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """See ``LinearOp``."""
        made = self._multiplied(x)
        made = made.to(x.dtype) if out is None else out.copy_(made)
        return made if self._bias is None else made.add_(self._bias)

    def add_to(self, onto: torch.Tensor, x: torch.Tensor) -> torch.Tensor | None:
        """See ``LinearOp``."""
        onto.add_(self._multiplied(x))
        if self._bias is not None:
            onto.add_(self._bias)
        return None

    @abstractmethod
    def _multiplied(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the product without bias into a new tensor of any float dtype."""


class WeightOnlyInt8Linear(PackedLinear):
    """Weight-only int8: ``(x @ codes.T) * scales + bias``.

    Args:
        weight: for which ``fits_weight_only_int8``.
        bias: float, shape ``[out]``.
    """

    __slots__ = ("_codes", "_ones", "_scales")

    def __init__(self, weight: GroupedWeight, bias: torch.Tensor | None = None) -> None:
        self._codes = weight.codes.contiguous()
        self._scales = weight.scales[:, 0].contiguous()
        # The kernel takes bfloat16 scales only, so float32 scales are applied afterwards.
        self._ones = torch.ones(len(self._codes), dtype=torch.bfloat16)
        super().__init__(bias, self._codes, self._scales, self._ones)

    def _multiplied(self, x: torch.Tensor) -> torch.Tensor:
        sums = torch._weight_int8pack_mm(x.to(torch.bfloat16).contiguous(), self._codes, self._ones)
        # Promotes to float32, as the scales are.
        return sums.mul(self._scales)


def fits_weight_only_int8(weight: GroupedWeight) -> bool:
    """Whether the int8 kernel supports a weight: int8 codes with per-row scales only."""
    return (
        weight.activations == "float"
        and weight.codes.dtype == torch.int8
        and weight.codes.shape[1] % _BYTE_COLUMNS == 0
        and weight.scales.shape[1] == 1
        and weight.group_of is None
        and weight.offsets is None
    )
