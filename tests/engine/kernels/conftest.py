"""Fixtures: Triton kernels on the GPU, or in Triton's interpreter."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from gatewayd_engine.kernels.base import Kernels

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

# Triton decides when a kernel is defined, its own parts when it is imported, whether it will be
# interpreted. What others define in this process afterwards is none of our business.
if DEVICE.type == "cpu":
    if "triton" in sys.modules:
        raise RuntimeError("triton was imported before it could be told to interpret")
    os.environ["TRITON_INTERPRET"] = "1"
try:
    import triton.experimental.gluon  # noqa: F401 - the first launch would import it, too late
    import triton.language as tl
    from triton.runtime import interpreter

    from gatewayd_engine.kernels.triton_kernels import TritonKernels
finally:
    if DEVICE.type == "cpu":
        del os.environ["TRITON_INTERPRET"]


@pytest.fixture
def device() -> torch.device:
    return DEVICE


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernels]:
    """``TritonKernels``, interpreted as a GPU computes.

    The interpreter cuts small floats off where the hardware rounds, and takes bits of bfloat16 for
    integers in products of matrices. Numpy, in which it computes, warns of what is not a number.
    """
    convert = interpreter._convert_float
    small = {
        tl.bfloat16: torch.bfloat16,
        tl.float8e4nv: torch.float8_e4m3fn,
        tl.float8e5: torch.float8_e5m2,
    }
    dot = interpreter.InterpreterBuilder.create_dot

    def rounding(array: Any, source: Any, target: Any, mode: Any) -> Any:
        if source != tl.float32 or target not in small:
            return convert(array, source, target, mode)
        numbers = torch.from_numpy(np.ascontiguousarray(array))
        if target == tl.bfloat16:
            return numbers.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
        return numbers.to(small[target]).view(torch.uint8).numpy()

    def widened(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        wide = (handle.data.astype(np.uint32) << 16).view(np.float32)
        return interpreter.TensorHandle(wide, tl.float32)

    def multiplying(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return dot(self, widened(a), widened(b), *rest)

    monkeypatch.setattr(interpreter, "_convert_float", rounding)
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", multiplying)
    with np.errstate(all="ignore"):
        yield TritonKernels()
