"""Products with activations rounded to bfloat16, as torch's kernels of packed weights want them.

A row of the batch is multiplied by itself: a product does not depend on who else is computed. What
it is given does not either, for decoders with such products are steady (ADR 0035).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from gatewayd_hooks.quantization import GroupedWeight

_BYTE_COLUMNS = 32
"""The kernel of bytes reads beyond rows that are no multiple of it."""


class PackedLinear(ABC):
    """What such products share.

    Args:
        bias: float, shape ``[out]``.
        tensors: the weight's.
    """

    __slots__ = ("_bias", "nbytes")

    rounds_inputs = True

    def __init__(self, bias: torch.Tensor | None, *tensors: torch.Tensor | None) -> None:
        self._bias = bias
        held = (*tensors, bias)
        self.nbytes = sum(tensor.nbytes for tensor in held if tensor is not None)

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
        """The product without a bias, a new tensor of any floats."""


class ByteLinear(PackedLinear):
    """``(x @ codes.T) * scales + bias``.

    Args:
        weight: one that ``is_for_bytes``.
        bias: float, shape ``[out]``.
    """

    __slots__ = ("_codes", "_ones", "_scales")

    def __init__(self, weight: GroupedWeight, bias: torch.Tensor | None = None) -> None:
        self._codes = weight.codes.contiguous()
        self._scales = weight.scales[:, 0].contiguous()
        # The kernel knows scales of bfloat16 only: they are multiplied with afterwards.
        self._ones = torch.ones(len(self._codes), dtype=torch.bfloat16)
        super().__init__(bias, self._codes, self._scales, self._ones)

    def _multiplied(self, x: torch.Tensor) -> torch.Tensor:
        sums = torch._weight_int8pack_mm(x.to(torch.bfloat16).contiguous(), self._codes, self._ones)
        return sums.mul(self._scales)


def is_for_bytes(weight: GroupedWeight) -> bool:
    """Whether the kernel of bytes can hold a weight: a scale for each row."""
    return (
        weight.activations == "float"
        and weight.codes.dtype == torch.int8
        and weight.codes.shape[1] % _BYTE_COLUMNS == 0
        and weight.scales.shape[1] == 1
        and weight.group_of is None
        and weight.offsets is None
    )
