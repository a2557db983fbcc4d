"""Uninterruptible strategies: end their engine, and the next starts without them."""

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


def installed(folder: Path, how: str, at_import: str = "") -> dict[str, str]:
    """A distribution that offers the scheduler ``stuck``, and the environment that chooses it."""
    (folder / "stuck_plugin.py").write_text(PLUGIN.replace("BREAK", how) + at_import)
    info = folder / "stuck_plugin-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stuck-plugin\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[gatewayd]\nscheduler.stuck = stuck_plugin\n")
    return {
        "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "GATEWAYD_SCHEDULER__STRATEGY": "stuck",
        "GATEWAYD_ENGINE__HANG_SECONDS": "1.0",
        "GATEWAYD_ENGINE__STRATEGY_HANG_SECONDS": "0.3",
        "GATEWAYD_ENGINE__THREADS": "1",
    }


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("sum(range(10**13))", "sent no heartbeat for"),
        ("ctypes.string_at(1)", "killed by SIGSEGV"),
        ("os._exit(3)", "in scheduler.stuck (exit status 3)"),
    ],
)
async def test_the_engine_is_replaced_and_the_strategy_is_named(
    start_daemon: Start, client: Any, tmp_path: Path, how: str, words: str
) -> None:
    daemon = start_daemon(NANO, env=installed(tmp_path, how))
    answers = await asyncio.gather(
        *(client.complete(daemon, f"tell me {k}", 12, stream=False) for k in range(4))
    )
    for answer in answers:
        assert answer.error is None
        assert answer.is_complete
    assert daemon.said("scheduler.stuck quarantined: it crashed engine 0")
    assert daemon.said(words)
    assert daemon.readyz()[1]["replicas"][0]["restarts"] == 1


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            "raise SystemExit('line one\\nline two')",
            "raised SystemExit: line one line two at {}:22",
        ),
        ("return 'junk'", "returned 'junk' from plan, not a Plan; it is Stuck at {}:14"),
    ],
)
async def test_one_that_is_at_fault_is_named_in_one_line_and_nothing_else_happens(
    start_daemon: Start, client: Any, tmp_path: Path, how: str, said: str
) -> None:
    daemon = start_daemon(NANO, env=installed(tmp_path, how))
    for k in range(2):
        answer = await client.complete(daemon, f"tell me {k}", 12, stream=False)
        assert answer.error is None
        assert answer.is_complete
    (first, *_) = [event for event in daemon.events() if "(fault 1 of 3)" in event["event"]]
    said = said.format(tmp_path / "stuck_plugin.py")
    assert first["event"] == f"engine 0: scheduler.stuck (stuck-plugin 1) {said} (fault 1 of 3)"
    assert (first["engine"], first["level"]) == (0, "warning")
    assert first["timestamp"].endswith("Z")
    assert all(line.startswith("{") for line in daemon.log.read_text().splitlines())
    assert daemon.readyz()[1]["replicas"][0]["restarts"] == 0


@pytest.mark.parametrize(
    ("at_import", "how"),
    [
        ("ctypes.string_at(1)\n", "killed by SIGSEGV"),
        ("os._exit(0)\n", "exit status 0"),
        ("raise KeyboardInterrupt\n", "killed by SIGINT"),
    ],
)
def test_one_that_an_engine_does_not_survive_loading_is_named_at_once(
    start_daemon: Start, tmp_path: Path, at_import: str, how: str
) -> None:
    daemon = start_daemon(NANO, env=installed(tmp_path, "pass", at_import), wait=False)
    assert daemon.process.wait(60) == 1
    assert daemon.said(
        "while loading scheduler.stuck, which `gatewayd plugin doctor scheduler.stuck` examines "
        f"({how})"
    )
    assert not daemon.said("restarting in")
