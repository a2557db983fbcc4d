"""Kernel selection: by device, and its cost."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend

from gatewayd_engine.kernels.select import choose, eight_bit_floats
from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.kernels.triton_kernels import TritonKernels


def test_cuda_gets_triton_and_others_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert isinstance(choose(torch.device("cuda")), TritonKernels)
    assert isinstance(choose(torch.device("cpu")), TorchKernels)


@pytest.mark.filterwarnings("ignore")  # of Triton, about itself
@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0)])
def test_floats_of_8_bits_are_those_that_triton_compiles(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    found = eight_bit_floats(torch.device("cuda"))
    target = GPUTarget("cuda", 10 * capability[0] + capability[1], 32)
    options = CUDABackend(target).parse_options({})
    compiled = {"fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2}
    assert set(found) == {
        compiled[name] for name in compiled if name in options.supported_fp8_dtypes
    }


def test_a_cpu_has_floats_of_8_bits() -> None:
    assert len(eight_bit_floats(torch.device("cpu"))) == 2


def test_a_cpu_needs_no_triton() -> None:
    code = (
        "import sys, torch; sys.modules['triton'] = None;"
        "from gatewayd_engine.kernels.select import choose; choose(torch.device('cpu'))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
