"""Queue timeout: a request that waited too long ends as 504; a started one goes on."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from gatewayd.http.schema.durable import DURABLE
from gatewayd.http.schema.openapi import document
from gatewayd.pipeline.timing import queue_timeout
from gatewayd.text.text_model import TextModel
from gatewayd.tracing.timeline import StepTimeTotals, Timeline
from gatewayd_engine.process.engine_stats import EngineStats
from gatewayd_engine.process.messages import StepOutput
from gatewayd_engine.process.time_causes import Cause
from tests.gatewayd.fake_fleet import FakeFleet, Job, hangs, says
from tests.gatewayd.gateway import CHAT, running, until

COMPLETION: dict[str, Any] = {"model": "nano", "prompt": [7, 8], "max_tokens": 4}
PATHS = [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), PATHS)
async def test_who_still_waits_ends_as_504_and_the_engine_forgets_it(
    text: TextModel, path: str, body: dict[str, Any], stream: bool
) -> None:
    fleet = FakeFleet(hangs)
    async with running(text, fleet) as gateway:
        began = time.monotonic()
        answer = await gateway.http.post(
            path, json=body | {"queue_timeout": 0.2, "stream": stream, "n": 2}
        )
        assert 0.15 < time.monotonic() - began < 20
        assert answer.status_code == 504
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == ("queue_timeout", "queue_timeout")
        assert "0.2 s" in error["message"]
        await until(lambda: all(job.gone.is_set() for job in fleet.jobs))


async def test_one_with_which_an_engine_has_begun_goes_on(text: TextModel) -> None:
    async def slow(job: Job) -> None:
        for sink in job.live():
            sink.admitted(0, 0.01)
        await asyncio.sleep(0.6)
        await says([300, 301])(job)

    async with running(text, FakeFleet(slow)) as gateway:
        answer = await gateway.http.post(
            "/v1/completions", json=COMPLETION | {"queue_timeout": 0.5}
        )
        assert answer.status_code == 200
        assert answer.json()["usage"]["completion_tokens"] == 2


async def test_the_time_runs_while_the_model_loads(text: TextModel) -> None:
    fleet = FakeFleet(says([300]))
    fleet.model = None

    async def never() -> None:
        await asyncio.sleep(60)

    fleet.wait_model = never  # type: ignore[method-assign]
    async with running(text, fleet) as gateway:
        answer = await gateway.http.post(
            "/v1/completions", json=COMPLETION | {"queue_timeout": 0.1}
        )
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "queue_timeout")


@pytest.mark.parametrize("value", [0, -1, 86401, "soon", True])
async def test_a_time_out_of_bounds_is_400(text: TextModel, value: object) -> None:
    async with running(text, FakeFleet(says([300]))) as gateway:
        answer = await gateway.http.post(
            "/v1/completions", json=COMPLETION | {"queue_timeout": value}
        )
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "queue_timeout"


def test_it_is_told_what_it_waited_for() -> None:
    assert "mostly" not in queue_timeout(1.0).message
    waiting = Timeline(time.monotonic() - 1.0)
    assert (
        "mostly: no engine was ready, or its engine was lost"
        in queue_timeout(1.0, [waiting]).message
    )
    pace = StepTimeTotals()
    waiting.sent(time.monotonic() - 0.9, pace)
    step = StepOutput(stats=EngineStats(step=1))
    pace.record_step(step, time.monotonic() - 0.8)
    waiting.on_step(Cause.KV_QUOTA, 0.0)
    assert "mostly: queued: its tenant's KV quota" in queue_timeout(1.0, [waiting]).message


def test_the_document_says_where_it_may_happen() -> None:
    found = document("9.9", DURABLE)["paths"]
    late = {
        path
        for path, methods in found.items()
        if any("504" in one["responses"] for one in methods.values())
    }
    assert late == {"/v1/chat/completions", "/v1/completions", "/v1/responses"}
