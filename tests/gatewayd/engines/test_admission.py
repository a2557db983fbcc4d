"""Admission in the fleet: inputs, clients' refusals, faults."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from gatewayd.errors import NotAdmitted, TenantNotAdmitted
from gatewayd.plugins.admission import FencedAdmission
from gatewayd_hooks.admission import AdmissionRequest, Load, Refusal
from gatewayd_hooks.host.plugin_times import PluginTimes
from gatewayd_hooks.host.watchdog import Watchdog

REFUSAL = Refusal("full", "no", 3.0, offers=({"service_tier": "flex"},))


class Told:
    """Answers what it is told to, and keeps what it hears."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.asked: list[tuple[AdmissionRequest, Load]] = []
        self.outcomes: list[tuple[AdmissionRequest, Load, float]] = []

    def open(self, resources: Any) -> None:
        pass

    def close(self) -> None:
        pass

    def admit(self, request: AdmissionRequest, load: Load) -> Refusal | None:
        self.asked.append((request, load))
        if isinstance(self.answer, Exception):
            raise self.answer
        answer: Refusal | None = self.answer
        return answer

    def began(self, request: AdmissionRequest, load: Load, seconds: float) -> None:
        self.outcomes.append((request, load, seconds))


def fenced(strategy: Told) -> FencedAdmission:
    plugin_times = PluginTimes(0.05)
    return FencedAdmission(strategy, "told", plugin_times, Watchdog(plugin_times, 5.0))


@pytest.mark.parametrize("is_tenants", [False, True])
async def test_a_refusal_is_429_or_503_with_what_to_do_at_once(
    make_fleet: Callable[..., Any],
    make_sink: Callable[..., Any],
    make_request: Callable[..., Any],
    is_tenants: bool,
) -> None:
    setup = await make_fleet()
    await setup.ready()
    refusal = Refusal(REFUSAL.reason, REFUSAL.message, 3.0, is_tenants, REFUSAL.offers)
    setup.fleet.admission = fenced(Told(refusal))
    computed = []
    gc.collect()  # others' garbage is not to be counted below
    for _ in range(50):
        began = time.thread_time()
        with pytest.raises(NotAdmitted) as caught:
            setup.fleet.submit(make_request([5, 6, 7]), [make_sink()])
        computed.append(time.thread_time() - began)
    error = caught.value
    assert isinstance(error, TenantNotAdmitted) is is_tenants
    assert error.status == (429 if is_tenants else 503)
    assert error.retry_after == 3.0
    assert error.body()["error"]["reason"] == "full"
    assert error.body()["error"]["offers"] == [], "it takes nothing, whatever it says of that"
    assert setup.fleet.num_unfinished == 0
    assert setup.fleet.room.remaining_requests == setup.fleet.room.limit_requests
    # It is no coroutine, so it waits for nothing; what it computes takes less than 1 ms.
    assert sorted(computed)[40] < 0.02


async def test_it_is_told_what_waits_and_when_requests_begin(
    make_fleet: Callable[..., Any],
    make_sink: Callable[..., Any],
    make_request: Callable[..., Any],
) -> None:
    setup = await make_fleet()
    told = Told()
    setup.fleet.admission = fenced(told)
    setup.fleet.deadlines = (0.5, 2.0, None)
    sinks = [make_sink() for _ in range(3)]
    # No engine serves yet: all of them wait.
    for at, (tenant, priority) in enumerate([("a", 1), ("b", 0), ("a", 2)]):
        request = replace(make_request([5, 6, 7]), tenant=tenant, priority=priority)
        setup.fleet.submit(request, [sinks[at]])
    requests, loads = zip(*told.asked, strict=True)
    length = requests[0].prompt_tokens
    assert [request.deadline for request in requests] == [2.0, 0.5, None]
    assert [load.requests for load in loads] == [0, 1, 2]
    assert [load.tokens for load in loads] == [0, length, 2 * length]
    assert [load.urgent_tokens for load in loads] == [0, 0, 2 * length]
    assert [load.tenant_requests for load in loads] == [0, 0, 1]
    assert [load.num_tenants for load in loads] == [1, 2, 2]
    await setup.until(lambda: all(sink.over.is_set() for sink in sinks))
    assert {id(request) for request, _, _ in told.outcomes} == {id(one) for one in requests}
    assert all(seconds > 0 for _, _, seconds in told.outcomes)
    setup.fleet.submit(replace(make_request([5, 6, 7]), tenant="c"), [make_sink()])
    assert told.asked[-1][1] == Load(0, 0, 1000, 10**6, 0, 0, 0, 1, 1)


@pytest.mark.parametrize("answer", [RuntimeError("broken"), "no"])
async def test_one_that_fails_lets_everybody_in_and_is_asked_no_more(
    make_fleet: Callable[..., Any],
    make_sink: Callable[..., Any],
    make_request: Callable[..., Any],
    answer: Any,
) -> None:
    setup = await make_fleet()
    told = Told(answer)
    setup.fleet.admission = fenced(told)
    for _ in range(5):
        setup.fleet.submit(make_request([5, 6, 7]), [make_sink()])
    assert len(told.asked) == 3
    assert setup.fleet.admission.is_quarantined
