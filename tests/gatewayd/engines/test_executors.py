"""Executors that raise, hang or return nonsense: named, and asked again."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from gatewayd.engines.replicas.engine_process import FencedProcess, ProcessExit, end_process, start
from gatewayd.engines.replicas.silence_limits import SilenceLimits
from gatewayd.plugins.executor import FencedExecutor
from gatewayd_hooks.execution import EngineCommand
from gatewayd_hooks.host.fence import StrategyHang
from gatewayd_hooks.host.plugin_times import PluginTimes
from gatewayd_hooks.host.watchdog import Watchdog
from gatewayd_hooks.strategy import Kind

COMMAND = EngineCommand(argv=("true",), env={}, replica=0)


class _Process:
    def __init__(self, stream: Any, pid: Any = 7) -> None:
        self.socket, self.pid = stream, pid

    def poll(self) -> Any:
        raise OSError("lost sight of it")

    terminate = abort = kill = poll


def _starts(what: Callable[[], Any]) -> Any:
    class Executor:
        def start(self, command: EngineCommand) -> Any:
            return what()

    return Executor()


@pytest.mark.parametrize("process", [_Process("no socket"), _Process(None, "no pid")])
def test_what_is_no_process_is_refused(process: Any) -> None:
    with pytest.raises(TypeError, match="without pid and socket"):
        start(_starts(lambda: process), COMMAND)
    with pytest.raises(AttributeError):
        start(_starts(lambda: None), COMMAND)


def test_a_process_whose_methods_raise_raises_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as stream:
        process = FencedProcess(_Process(stream))
        assert process.poll() is None
        process.kill()
    assert "executor call kill failed for process 7" in caplog.text


def test_one_that_hangs_is_interrupted_and_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gatewayd.plugins.executor._PROCESS_SECONDS", 0.2)
    plugin_times = PluginTimes(0.05)
    executor = FencedExecutor(
        _starts(lambda: time.sleep(60)), "far", plugin_times, Watchdog(plugin_times, 5.0)
    )
    began = time.monotonic()
    with pytest.raises(StrategyHang, match=r"far\.start hung at"):
        start(executor, COMMAND)
    assert time.monotonic() - began < 30
    assert plugin_times.costs()[Kind.EXECUTOR, "far"].calls == 1


def test_one_that_has_let_go_may_still_say_how_it_ends() -> None:
    ours, theirs = socket.socketpair()
    program = "import os, sys, time; os.close(int(sys.argv[1])); time.sleep(0.2); sys.exit(7)"
    with ours, theirs:
        child = subprocess.Popen(
            [sys.executable, "-c", program, str(theirs.fileno())], pass_fds=[theirs.fileno()]
        )
        theirs.close()
        assert not ours.recv(1)
        child.socket = ours  # type: ignore[attr-defined]
        child.abort = child.kill  # type: ignore[attr-defined]
        process = FencedProcess(child)  # type: ignore[arg-type]
        assert asyncio.run(end_process(process, SilenceLimits(), ProcessExit.LOST)) == 7
