"""What tests on a GPU share."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.core.conftest import Harness
from tests.gpu.engines import on_gpu

Make = Callable[..., Harness]


@pytest.fixture
def make() -> Iterator[Make]:
    """Engines on the GPU, whose memory is free again when the test is over."""
    opened: list[Harness] = []

    def made(model: Path | None = None, **fields: Any) -> Harness:
        opened.append(on_gpu(model, **fields))
        return opened[-1]

    yield made
    for engine in opened:
        engine.core.check()
        engine.core.strategies.close()
    opened.clear()
    gc.collect()
    torch.cuda.empty_cache()
