"""KV retention: a request's wish reaches the engine."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gatewayd.engines.replicas.replica import Replica
from gatewayd_engine.process.messages import Submit
from tests.gatewayd.engines.conftest import Sink, request


async def test_the_engine_is_told(make_fleet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Submit] = []
    send = Replica.send

    def noting(self: Replica, command: Any) -> None:
        sent.append(command)
        send(self, command)

    monkeypatch.setattr(Replica, "send", noting)
    setup = await make_fleet()
    await setup.ready()
    sink = Sink()
    wish = msgspec.structs.replace(request([1, 2, 3], 2), retention=(90, 60.0))
    setup.fleet.submit(wish, [sink])
    assert [c.retention for c in sent if isinstance(c, Submit)] == [(90, 60.0)]
