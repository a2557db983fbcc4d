"""The small kernels of a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from gatewayd_engine.kernels.base import Kernels


def choose(device: torch.device) -> Kernels:
    """Triton's on CUDA, which needs Triton installed; torch's elsewhere."""
    if device.type == "cuda":
        from gatewayd_engine.kernels.triton_kernels import TritonKernels

        return TritonKernels()
    from gatewayd_engine.kernels.twins import TorchKernels

    return TorchKernels()
