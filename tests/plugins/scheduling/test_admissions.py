"""Admission plugins: reserve room, and forecasts hold as often as stated."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from gatewayd_admit_forecast.config import ForecastConfig
from gatewayd_admit_forecast.strategy import Forecast
from gatewayd_admit_forecast.ttft_forecast import TtftForecast
from gatewayd_admit_room.config import RoomConfig
from gatewayd_admit_room.strategy import Room
from gatewayd_hooks.admission import AdmissionRequest, AdmissionStrategy, Load
from gatewayd_hooks.scheduling import SchedulerStrategy
from gatewayd_hooks.testing.fakes import FakeQueue
from gatewayd_sched_fcfs.config import FcfsConfig
from gatewayd_sched_fcfs.strategy import Fcfs
from gatewayd_sched_slo.config import SloConfig
from gatewayd_sched_slo.strategy import LeastSlack
from tests.plugins.scheduling.simulated_traffic import Answered, Ask, Machine, Run, poisson

SECONDS = 120.0
ASKED = AdmissionRequest(100, 50, 1, 1, "a", 1.0)
LOAD = Load(10, 1000, 100, 10_000, 1000, 4, 400, 2, 1)


def test_a_tenant_with_its_part_of_the_queue_is_refused_and_others_are_not() -> None:
    room = Room(RoomConfig(tenant_share=0.5))
    full = replace(LOAD, requests=60, tenant_requests=50)
    refusal = room.admit(ASKED, full)
    assert refusal is not None
    assert refusal.is_tenants
    assert "50 requests of yours" in refusal.message
    assert room.admit(ASKED, replace(full, tenant_requests=49)) is None
    assert room.admit(ASKED, replace(full, tenant_requests=0)) is None
    assert room.admit(replace(ASKED, tenant=""), full) is None


def test_a_tenants_prompt_tokens_count_too_but_not_those_of_its_only_request() -> None:
    room = Room(RoomConfig(tenant_share=0.5))
    assert room.admit(ASKED, replace(LOAD, tenant_tokens=4900)) is None
    assert room.admit(ASKED, replace(LOAD, tenant_tokens=4901)) is not None
    huge = replace(ASKED, prompt_tokens=9000)
    assert room.admit(huge, replace(LOAD, tenant_requests=0, tenant_tokens=0)) is None


@pytest.mark.parametrize("confidence", [0.5, 0.9])
@pytest.mark.parametrize("seed", [1, 2])
def test_as_many_promises_are_kept_as_is_said_though_the_machine_changes(
    confidence: float, seed: int
) -> None:
    """Noise of a third, and half as fast from the middle on; each promise is made before."""
    draw, forecast, kept = random.Random(seed), TtftForecast(confidence), 0
    for i in range(4000):
        tokens = draw.randint(10, 20_000)
        seconds = (0.05 + tokens * 1e-4) * draw.lognormvariate(0, 0.3) * (2 if i > 2000 else 1)
        kept += seconds <= forecast.promised(tokens)
        forecast.record(tokens, seconds)
    assert kept / 4000 == pytest.approx(confidence, abs=0.03)


def _learned(**config: object) -> Forecast:
    forecast = Forecast(ForecastConfig.model_validate({"least": 5, **config}))
    for tokens in range(0, 20_000, 500):
        load = replace(
            LOAD, tokens=tokens, urgent_tokens=tokens, tenant_tokens=tokens, num_tenants=1
        )
        forecast.began(ASKED, load, 0.01 + (tokens + 100) * 1e-4)
    return forecast


def test_what_would_begin_too_late_is_refused_with_what_would_not() -> None:
    forecast = _learned()
    assert forecast.admit(ASKED, replace(LOAD, tokens=5000, urgent_tokens=5000)) is None
    late = replace(LOAD, tokens=80_000, urgent_tokens=80_000, tenant_tokens=100)
    refusal = forecast.admit(ASKED, late)
    assert refusal is not None
    assert refusal.reason == "deadline_unreachable"
    assert refusal.retry_after == pytest.approx(7, rel=0.4)
    assert not refusal.is_tenants
    assert refusal.offers == ({"service_tier": "flex"},)
    assert forecast.admit(replace(ASKED, deadline=None), late) is None
    mine = forecast.admit(ASKED, replace(late, tenant_tokens=60_000))
    assert mine is not None
    assert mine.is_tenants


def test_only_what_the_scheduler_computes_before_it_is_ahead() -> None:
    late = replace(LOAD, tokens=80_000, urgent_tokens=1000, tenant_tokens=1000, num_tenants=3)
    refused = {
        ahead: _learned(ahead=ahead).admit(ASKED, late) is not None
        for ahead in ("arrival", "class", "tenant")
    }
    assert refused == {"arrival": True, "class": False, "tenant": False}


def serve(scheduler: SchedulerStrategy, asks: list[Ask], admission: AdmissionStrategy) -> Run:
    """Traffic before a machine, with an admission that is told what waits."""
    asked: dict[int, tuple[AdmissionRequest, Load]] = {}

    def admit(ask: Ask, queue: FakeQueue) -> bool:
        tokens = sum(int(queue.view.num_tokens[s.slot]) for s in queue.waiting)
        waiting = len(queue.waiting)
        load = Load(waiting, tokens, 10**6, 10**9, tokens, waiting, tokens, 1, 1)
        request = AdmissionRequest(ask.prompt, ask.output, 1, ask.priority, "", ask.deadline)
        asked[id(ask)] = request, load
        return admission.admit(request, load) is None

    def began(answered: Answered) -> None:
        admission.began(*asked[id(answered.ask)], answered.ttft)

    return Run(Machine(), scheduler, admit=admit, began=began).play(asks)


@pytest.mark.parametrize("load", [18, 36])
def test_at_overload_those_that_are_taken_on_are_in_time(load: int) -> None:
    """Twice and four times what the machine can do, and goodput to that of fcfs without it."""
    asks = poisson(load, SECONDS, 3, (200, 1400), (5, 40), deadline=1.0)
    first = Run(Machine(), Fcfs(FcfsConfig())).play(asks).goodput(SECONDS)
    run = serve(LeastSlack(SloConfig()), asks, Forecast(ForecastConfig()))
    assert run.goodput(SECONDS) >= 1.5 * first
    assert run.goodput(SECONDS) > 6, "of about nine that it could do"
    in_time = sum(answered.is_in_time for answered in run.answered)
    assert in_time / len(run.answered) > 0.85
    assert len(run.refused) + len(run.answered) == len(asks)
    # After the rush nobody is refused any more.
    later = [replace(ask, at=ask.at + 2 * SECONDS) for ask in asks[:1]]
    assert not [ask for ask in serve(
        LeastSlack(SloConfig()), [*asks, *later], Forecast(ForecastConfig())
    ).refused if ask.at > 2 * SECONDS]  # fmt: skip


def test_below_the_load_hardly_anybody_is_refused() -> None:
    asks = poisson(5, SECONDS, 3, (200, 1400), (5, 40), deadline=1.0)
    run = serve(LeastSlack(SloConfig()), asks, Forecast(ForecastConfig()))
    assert len(run.refused) < 0.01 * len(asks)
