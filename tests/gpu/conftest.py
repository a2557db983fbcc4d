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


class FailuresAtOnce:
    """Prints the end of each failure when it happens: a step's limit may end the run before it."""

    _LINES = 8

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            lines = report.longreprtext.splitlines()[-self._LINES :]
            terminal.write_line("\n".join((f"\n{report.nodeid}", *lines)))


def pytest_configure(config: pytest.Config) -> None:
    """Register ``FailuresAtOnce``, but in no worker of pytest-xdist."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailuresAtOnce(config))


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
