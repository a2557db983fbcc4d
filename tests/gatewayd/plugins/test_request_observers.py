"""Request observers: slow ones are named in the request's latency record."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gatewayd.plugins.observers import ObserverRecord
from gatewayd.tracing import request_trace
from gatewayd_hooks.host.plugin_times import PluginTimes
from gatewayd_hooks.host.watchdog import Watchdog
from tests.gatewayd.tracing.test_latency_record import latency_record


class Host:
    """Two plugins that listen."""

    def listeners(self, hook: str) -> dict[str, Any]:
        return {"slow": lambda event: time.sleep(0.05), "quick": lambda event: None}


async def test_the_plugin_that_a_request_waited_for_is_named() -> None:
    host: Any = Host()
    watched = PluginTimes(1.0)
    told = ObserverRecord(host, "gatewayd_request_admitted", watched, Watchdog(watched, 10.0))
    request_trace.start_trace("mine")
    submitted = time.monotonic()
    told.notify(object())
    handed = time.monotonic()
    kept = request_trace.current()
    assert kept is not None
    found = latency_record(
        arrival=kept.arrival,
        spans=kept.spans,
        submitted=submitted,
        notified=handed,
        intervals=(),
        computed=handed,
        end=handed,
    )
    parts = found.parts()
    assert sum(part.seconds for part in parts) == pytest.approx(found.seconds, abs=1e-9)
    slow = [part for part in parts if part.strategy == "observer.slow"]
    assert [part.cause for part in slow] == ["plugin"]
    assert slow[0].seconds > 0.045
    assert found.dominant_strategy("plugin") == "observer.slow"
    assert {part.cause for part in parts} == {"gateway", "plugin"}
