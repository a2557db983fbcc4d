"""What GPUs can do by their data sheets, and what of that programs get."""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple

_READ = 3.97 / 4.8
"""Of the memory's speed: kernels that read weights and keys on an H200."""
_MULTIPLIED = 790 / 989
"""Of the speed of bfloat16 products without sparsity: large matrices on an H200."""
_ATTENDED = 600 / 989
"""Of the same: FlashAttention 3 over long prompts, heads of 128."""


class Chip(NamedTuple):
    """One kind of GPU, by its data sheet.

    Attributes:
        terabytes: of memory read in a second.
        teraflops: of dense bfloat16 products in a second.
    """

    terabytes: float
    teraflops: float

    @property
    def read(self) -> float:
        """Bytes a second that kernels get."""
        return _READ * self.terabytes * 1e12

    @property
    def multiplied(self) -> float:
        """Operations a second that matrix products get."""
        return _MULTIPLIED * self.teraflops * 1e12

    @property
    def attended(self) -> float:
        """Operations a second that attention over prompts gets."""
        return _ATTENDED * self.teraflops * 1e12


CHIPS = MappingProxyType(
    {
        "NVIDIA H200": Chip(4.8, 989),
        "NVIDIA H200 NVL": Chip(4.8, 835),
        "NVIDIA H100 80GB HBM3": Chip(3.35, 989),
        "NVIDIA H100 NVL": Chip(3.9, 835),
        "NVIDIA H100 PCIe": Chip(2.0, 756),
        "NVIDIA B200": Chip(8.0, 2250),
        "NVIDIA A100-SXM4-80GB": Chip(2.04, 312),
        "NVIDIA A100-SXM4-40GB": Chip(1.555, 312),
        "NVIDIA A100 80GB PCIe": Chip(1.935, 312),
        "NVIDIA L40S": Chip(0.864, 362),
        "NVIDIA L4": Chip(0.3, 121),
    }
)
"""By the name that the driver says."""
