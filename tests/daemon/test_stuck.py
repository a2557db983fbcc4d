"""A strategy that no signal reaches ends its engine; the next one starts without it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Start = Callable[..., Any]
NANO = ("-m", "gatewayd", "serve", "--port", "0")
PLUGIN = """
import ctypes
import os
from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyConfig, StrategyInfo
from gatewayd_sched_fcfs.config import FcfsConfig
from gatewayd_sched_fcfs.strategy import Fcfs


class Settings(StrategyConfig):
    pass


class Stuck(Fcfs):
    def __init__(self, config):
        super().__init__(FcfsConfig())
        self._left = 3

    def plan(self, view):
        self._left -= 1
        if not self._left:
            BREAK
        return super().plan(view)


@hookimpl
def gatewayd_schedulers():
    return [StrategyInfo("stuck", Settings, Stuck, "Works for a while.")]
"""


def install(folder: Path, how: str) -> None:
    """A distribution that offers the scheduler ``stuck``."""
    (folder / "stuck_plugin.py").write_text(PLUGIN.replace("BREAK", how))
    info = folder / "stuck_plugin-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stuck-plugin\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[gatewayd]\nscheduler.stuck = stuck_plugin\n")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("sum(range(10**13))", "gave no sign of life for"),
        ("ctypes.string_at(1)", "killed by SIGSEGV"),
    ],
)
async def test_the_engine_is_replaced_and_the_strategy_is_named(
    start_daemon: Start, client: Any, tmp_path: Path, how: str, words: str
) -> None:
    install(tmp_path, how)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    daemon = start_daemon(
        NANO,
        env={
            "PYTHONPATH": path,
            "GATEWAYD_SCHEDULER__STRATEGY": "stuck",
            "GATEWAYD_ENGINE__HANG_SECONDS": "1.0",
            "GATEWAYD_ENGINE__STRATEGY_HANG_SECONDS": "0.3",
            "GATEWAYD_ENGINE__THREADS": "1",
        },
    )
    answers = await asyncio.gather(
        *(client.complete(daemon, f"tell me {k}", 12, stream=False) for k in range(4))
    )
    for answer in answers:
        assert answer.error is None
        assert answer.is_complete
    assert daemon.said("scheduler.stuck is quarantined: an engine ended in it")
    assert daemon.said(words)
    assert daemon.readyz()[1]["replicas"][0]["restarts"] == 1
