"""Peak figures of GPUs from data sheets, and the fractions that kernels achieve."""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple

_READ = 3.97 / 4.8
"""Achieved fraction of memory bandwidth: reading weights and KV on an H200."""
_MULTIPLIED = 790 / 989
"""Achieved fraction of dense bfloat16 peak: large matrix products on an H200."""
_ATTENDED = 600 / 989
"""Achieved fraction of dense bfloat16 peak: FlashAttention 3, long prompts, head size 128."""


class Chip(NamedTuple):
    """GPU model, by its data sheet.

    Attributes:
        terabytes: memory bandwidth in TB/s.
        teraflops: dense bfloat16 peak in TFLOPS.
    """

    terabytes: float
    teraflops: float

    @property
    def read(self) -> float:
        """Achievable memory bandwidth, bytes per second."""
        return _READ * self.terabytes * 1e12

    @property
    def multiplied(self) -> float:
        """Achievable matrix product throughput, operations per second."""
        return _MULTIPLIED * self.teraflops * 1e12

    @property
    def attended(self) -> float:
        """Achievable prefill attention throughput, operations per second."""
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
"""GPUs by the name that the driver reports."""
