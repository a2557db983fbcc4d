"""Executors that raise, hang or give nonsense: named, and asked again."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from gatewayd.engines.starting import FencedProcess, GuardedExecutor, start
from gatewayd_hooks.execution import EngineCommand
from gatewayd_hooks.fence import StrategyHang
from gatewayd_hooks.ledger import Ledger
from gatewayd_hooks.strategy import Kind
from gatewayd_hooks.watchdog import Watchdog

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
    assert "kill of the executor's process 7 failed" in caplog.text


def test_one_that_hangs_is_interrupted_and_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gatewayd.engines.starting._START_SECONDS", 0.2)
    ledger = Ledger(0.05)
    executor = GuardedExecutor(
        _starts(lambda: time.sleep(60)), "far", ledger, Watchdog(ledger, 5.0)
    )
    began = time.monotonic()
    with pytest.raises(StrategyHang, match=r"far\.start hung at"):
        start(executor, COMMAND)
    assert time.monotonic() - began < 3
    assert ledger.costs()[Kind.EXECUTOR, "far"].calls == 1
