"""The small kernels of a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from gatewayd_engine.kernels.base import Kernels

_FLOATS = (torch.float8_e4m3fn, torch.float8_e5m2)
_E4M3_SINCE = (8, 9)
"""Compute capability from which on Triton has e4m3; e5m2 it has wherever it runs."""

_EARLY_SINCE = 9
"""Major number of the compute capability from which on launches can be early."""


def choose(device: torch.device) -> Kernels:
    """Triton's on CUDA, which needs Triton installed; torch's elsewhere."""
    if device.type == "cuda":
        from gatewayd_engine.kernels.triton_kernels import TritonKernels

        is_hopper = torch.cuda.get_device_capability(device)[0] >= _EARLY_SINCE
        return TritonKernels(can_launch_early=is_hopper)
    from gatewayd_engine.kernels.torch_kernels import TorchKernels

    return TorchKernels()


def eight_bit_floats(device: torch.device) -> tuple[torch.dtype, ...]:
    """Floats of 8 bits that the kernels of a device write."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < _E4M3_SINCE:
        return _FLOATS[1:]
    return _FLOATS
