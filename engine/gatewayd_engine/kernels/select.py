"""Selection of the fused kernels for a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from gatewayd_engine.kernels.base import Kernels

_FLOATS = (torch.float8_e4m3fn, torch.float8_e5m2)
_E4M3_SINCE = (8, 9)
"""Least compute capability for which Triton supports e4m3; it supports e5m2 everywhere."""

_EARLY_SINCE = 9
"""Least major compute capability that supports programmatic dependent launch."""


def choose(device: torch.device) -> Kernels:
    """Return the Triton kernels on CUDA, which requires Triton, and the torch ones elsewhere."""
    if device.type == "cuda":
        # Imported here: Triton is required on GPUs only.
        from gatewayd_engine.kernels.triton_kernels import TritonKernels

        is_hopper = torch.cuda.get_device_capability(device)[0] >= _EARLY_SINCE
        return TritonKernels(can_launch_early=is_hopper)
    from gatewayd_engine.kernels.torch_kernels import TorchKernels

    return TorchKernels()


def eight_bit_floats(device: torch.device) -> tuple[torch.dtype, ...]:
    """Return the 8-bit float dtypes that a device's kernels can write."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < _E4M3_SINCE:
        return _FLOATS[1:]
    return _FLOATS
