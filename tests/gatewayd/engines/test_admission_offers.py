"""Admission offers: accepted when a refused client sends them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from gatewayd.errors import NotAdmitted
from gatewayd.plugins.admission import FencedAdmission
from gatewayd_admit_forecast.config import ForecastConfig
from gatewayd_admit_forecast.strategy import Forecast
from gatewayd_hooks.admission import AdmissionRequest, Load, Refusal
from gatewayd_hooks.host.plugin_times import PluginTimes
from gatewayd_hooks.host.watchdog import Watchdog
from gatewayd_hooks.scheduling import Priority

Make = Callable[..., Any]


class Short:
    """Takes answers of up to so many tokens."""

    def __init__(self, most: int) -> None:
        self.most = most

    def open(self, resources: Any) -> None:
        pass

    def close(self) -> None:
        pass

    def admit(self, request: AdmissionRequest, load: Load) -> Refusal | None:
        return None if request.max_tokens <= self.most else Refusal("long", "too long", 1.0)

    def began(self, request: AdmissionRequest, load: Load, seconds: float) -> None:
        pass


def fenced(strategy: Any) -> FencedAdmission:
    plugin_times = PluginTimes(0.05)
    return FencedAdmission(strategy, "told", plugin_times, Watchdog(plugin_times, 5.0))


def learned() -> Forecast:
    """It expects a second for each 10 tokens."""
    forecast = Forecast(ForecastConfig(least=5, ahead="class"))
    asked = AdmissionRequest(10, 5, 1, 1, "", 1.0)
    for tokens in range(0, 400, 10):
        load = Load(1, tokens, 100, 10_000, tokens, 0, 0, 1, 1)
        forecast.began(asked, load, (tokens + 10) / 10)
    return forecast


async def refused(setup: Any, request: Any, make_sink: Make) -> list[dict[str, Any]]:
    with pytest.raises(NotAdmitted) as caught:
        setup.fleet.submit(request, [make_sink()])
    found: list[dict[str, Any]] = caught.value.body()["error"]["offers"]
    return found


@pytest.mark.parametrize("batch", [None, 1000.0, 1.0])
@pytest.mark.parametrize("param", ["service_tier", "priority"])
async def test_another_class_is_offered_only_where_that_is_in_time(
    make_fleet: Make, make_sink: Make, make_request: Make, batch: float | None, param: str
) -> None:
    setup = await make_fleet(env={"FAKE_FAULTS": "hold"})
    setup.fleet.deadlines = (1.0, 2.0, batch)
    request = replace(make_request([5] * 50), class_param=param)
    setup.fleet.submit(request, [make_sink()])
    setup.fleet.admission = fenced(learned())
    offers = await refused(setup, request, make_sink)
    word = {"service_tier": "flex", "priority": "batch"}[param]
    assert offers == ([] if batch == 1.0 else [{param: word}])
    for _ in offers:
        taken = replace(request, priority=Priority.BATCH)
        setup.fleet.submit(taken, [make_sink()])
        # What is batch work already is offered nothing, if it is refused at all.
        setup.fleet.submit(taken, [make_sink()])


@pytest.mark.parametrize(("most", "size"), [(70, 50), (30, 25), (5, 1), (0, None)])
async def test_a_shorter_answer_is_offered_as_long_as_is_taken(
    make_fleet: Make, make_sink: Make, make_request: Make, most: int, size: int | None
) -> None:
    setup = await make_fleet()
    request = replace(make_request([5, 6]), length_param="max_completion_tokens")
    request = replace(request, params=replace(request.params, max_tokens=100))
    setup.fleet.admission = fenced(Short(most))
    offers = await refused(setup, request, make_sink)
    assert offers == ([] if size is None else [{"max_completion_tokens": size}])
    if size is not None:
        params = replace(request.params, max_tokens=size)
        setup.fleet.submit(replace(request, params=params), [make_sink()])
