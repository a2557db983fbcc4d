"""Ports of protocols: faults of one stop neither the daemon nor others."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from gatewayd.plugins import own_ports
from gatewayd.plugins.own_ports import OwnPorts
from tests.gatewayd.http.protocols.plain_protocol import Plain


class Port(Plain):
    """A protocol with a port.

    Attributes:
        events: what happened, in order.
    """

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.events: list[Any] = []

    async def start(self) -> None:
        self.events.append("start")
        if self.fault == "start":
            raise OSError("the port is in use")
        if self.fault == "hang":
            await asyncio.Event().wait()

    async def stop(self, seconds: float) -> None:
        self.events.append(seconds)
        if self.fault == "stop":
            raise ValueError("it does not stop")


@pytest.mark.parametrize("fault", ["start", "hang", "stop"])
async def test_a_fault_is_logged_and_others_serve(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(own_ports, "_START_SECONDS", 0.01)
    bad, good = Port(fault), Port()
    protocols: Any = [("plain", Plain()), ("bad", bad), ("good", good)]
    ports = OwnPorts(protocols)
    await ports.start()
    await ports.stop(3.0)
    assert bad.events == good.events == ["start", 3.0]
    (record,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert "protocol bad" in record.getMessage()
