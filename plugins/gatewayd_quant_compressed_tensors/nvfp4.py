"""NVFP4: 4-bit floats, with an 8-bit scale per 16 columns and a 32-bit scale per matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from gatewayd_hooks.helpers.float4 import DOUBLED
from gatewayd_hooks.helpers.quantized import divisible, finite
from gatewayd_hooks.quantization import GroupedWeight, Stored

if TYPE_CHECKING:
    from gatewayd_hooks.quantization import Matrix

NVFP4 = "nvfp4-pack-quantized"
GROUP = 16


class Nvfp4:
    """Storage form of NVFP4 matrices; see ``WeightForm``."""

    def stored(self, matrix: Matrix) -> dict[str, tuple[Stored, ...]]:
        """Return the required tensors.

        Raises:
            ValueError: its columns are not a multiple of 16.
        """
        groups = divisible(matrix.name, matrix.columns, GROUP, "columns")
        return {
            "weight_global_scale": (Stored("F32", (1,)),),
            "weight_scale": (Stored("F8_E4M3", (matrix.rows, groups)),),
            "weight_packed": (Stored("U8", (matrix.rows, matrix.columns // 2)),),
        }

    def optional(self) -> dict[str, tuple[Stored, ...]]:
        """Return the optional tensors: scales of inputs, which are not used."""
        return {"input_global_scale": (Stored("F32", (1,)),)}

    def weight(self, matrix: Matrix, take: Callable[[str], torch.Tensor]) -> GroupedWeight:
        """Return ``code * (scale / global scale)``.

        Raises:
            ValueError: invalid numbers.
        """
        whole = finite("weight_global_scale", take("weight_global_scale"))
        if not whole.all():
            raise ValueError("weight_global_scale is 0, and scales are divided by it")
        stored = finite("weight_scale", take("weight_scale").float())
        scales = finite("weight_scale / weight_global_scale", stored / whole)
        packed = take("weight_packed")
        nibbles = torch.stack((packed & 15, packed >> 4), -1).flatten(1)
        table = torch.tensor(DOUBLED, dtype=torch.int8)
        # Codes are doubled, so scales are halved.
        return GroupedWeight(table[nibbles.int()], scales * 0.5)
