"""docs/cpu-kernels.md: the example computes what the page says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gatewayd_engine.kernels.llvm.processor import host
from tests.docs.project import document


def test_the_example_of_a_cpu_kernel_computes_squared_relu() -> None:
    if host() is None:
        pytest.skip("no compiled kernels for this processor")
    (block,) = [b for b in document("docs/cpu-kernels.md").blocks if b.language == "python"]
    namespace: dict[str, Any] = {}
    exec(block.text, namespace)
    x, out = namespace["x"], namespace["out"]
    assert (x < 0).any()
    assert np.array_equal(out, np.maximum(x, 0) ** 2)
