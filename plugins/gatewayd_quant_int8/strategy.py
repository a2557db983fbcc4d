"""8-bit quantization with one scale per row, which maps its largest number to 127."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gatewayd_hooks.quantization import GroupedWeight

if TYPE_CHECKING:
    from gatewayd_hooks.quantization import Matrix, QuantizerResources

_LARGEST = 127
_BLOCK = 1 << 20
"""Numbers quantized at once, so that temporaries stay small."""


class Int8Quantizer:
    """Symmetric 8-bit weights, for matmul with 8-bit activations."""

    def open(self, resources: QuantizerResources) -> None:
        """Do nothing: the model does not matter."""

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def quantize(self, matrix: Matrix, weight: torch.Tensor) -> GroupedWeight:
        """Round to the nearest multiple of each row's scale; rows of zeros stay zeros.

        Raises:
            ValueError: a number is not finite.
        """
        # One pass without a temporary of the weight's size, which `abs` would need.
        least, most = torch.aminmax(weight, dim=1, keepdim=True)
        scales = torch.maximum(most, -least) / _LARGEST
        if not scales.isfinite().all():
            raise ValueError("it has numbers that are not finite")
        # Subnormal scales would be too coarse to divide by.
        scales[scales < torch.finfo(torch.float32).tiny] = torch.finfo(torch.float32).tiny
        codes = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
        step = max(1, _BLOCK // weight.shape[1])
        for begin in range(0, weight.shape[0], step):
            some = slice(begin, begin + step)
            codes[some] = weight[some].div(scales[some]).round_()
        return GroupedWeight(codes, scales, activations="int8")
