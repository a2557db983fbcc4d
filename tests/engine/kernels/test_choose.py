"""Who gets which kernels, and at what cost."""

from __future__ import annotations

import subprocess
import sys

import torch

from gatewayd_engine.kernels.choose import choose
from gatewayd_engine.kernels.triton_kernels import TritonKernels
from gatewayd_engine.kernels.twins import TorchKernels


def test_cuda_gets_triton_and_others_torch() -> None:
    assert isinstance(choose(torch.device("cuda")), TritonKernels)
    assert isinstance(choose(torch.device("cpu")), TorchKernels)


def test_a_cpu_needs_no_triton() -> None:
    code = (
        "import sys, torch; sys.modules['triton'] = None;"
        "from gatewayd_engine.kernels.choose import choose; choose(torch.device('cpu'))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
