"""Answer headers: time spent and remaining limits."""

from __future__ import annotations

import asyncio
import re
import time

import httpx
import pytest

from gatewayd.errors import QueueFull
from gatewayd.tenants.limits import go_duration
from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import FakeFleet, Job
from tests.gatewayd.gateway import CHAT, COMPLETION, running

QUEUE, PREFILL, DECODE = 0.03, 0.06, 0.09


took: dict[str, float] = {}
"""By the last request that took its time: on a busy machine it sleeps for longer."""


async def takes_its_time(job: Job) -> None:
    began = time.monotonic()
    await asyncio.sleep(QUEUE)
    for sink in job.live():
        sink.admitted(0, QUEUE)
    await asyncio.sleep(PREFILL)
    for sink in job.live():
        sink.tokens([100], None)
    first = time.monotonic()
    took["prefill"] = first - began - QUEUE
    await asyncio.sleep(DECODE)
    took["decode"] = time.monotonic() - first
    for sink in job.live():
        sink.tokens([101], None)
        sink.finished("stop", 2)


def spans(answer: httpx.Response) -> dict[str, float]:
    found = re.findall(r"(\w+);dur=([\d.]+)", answer.headers["server-timing"])
    return {name: float(shown) / 1000 for name, shown in found}


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)]
)
async def test_an_answer_says_where_its_time_went(
    text: TextModel, path: str, body: dict[str, object]
) -> None:
    async with running(text, FakeFleet(takes_its_time)) as gateway:
        answer = await gateway.http.post(path, json={**body, "n": 2})
    found = spans(answer)
    assert list(found) == ["gateway", "queue", "prefill", "decode"]
    assert found["queue"] == pytest.approx(QUEUE, abs=0.001)
    assert found["prefill"] == pytest.approx(took["prefill"], abs=0.02)
    assert found["decode"] == pytest.approx(took["decode"], abs=0.02)
    total = int(answer.headers["openai-processing-ms"]) / 1000
    assert total == pytest.approx(sum(found.values()), abs=0.002)


async def test_a_stream_says_what_is_known_at_its_first_token(text: TextModel) -> None:
    async with running(text, FakeFleet(takes_its_time)) as gateway:
        answer = await gateway.http.post("/v1/chat/completions", json={**CHAT, "stream": True})
    found = spans(answer)
    assert list(found) == ["gateway", "queue", "prefill"]
    assert found["prefill"] == pytest.approx(took["prefill"], abs=0.02)


async def test_an_answer_tells_the_room_in_the_queue(text: TextModel) -> None:
    async with running(text, FakeFleet(takes_its_time)) as gateway:
        answer = await gateway.http.post("/v1/chat/completions", json=CHAT)
    told = {
        name.removeprefix("x-ratelimit-"): value
        for name, value in answer.headers.items()
        if name.startswith("x-ratelimit-")
    }
    assert told == {
        "limit-requests": "10",
        "remaining-requests": "7",
        "reset-requests": "12ms",
        "limit-tokens": "1000",
        "remaining-tokens": "900",
        "reset-tokens": "12ms",
    }


async def test_a_full_queue_says_when_to_come_again_in_milliseconds(text: TextModel) -> None:
    async with running(text, FakeFleet(takes_its_time)) as gateway:
        gateway.fleet.refusal = QueueFull("256 requests wait", retry_after=3.2)
        answer = await gateway.http.post("/v1/chat/completions", json=CHAT)
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "4"
    assert answer.headers["retry-after-ms"] == "3200"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0s"),
        (0.0124, "12ms"),
        (1.0, "1s"),
        (1.5, "1.5s"),
        (59.999, "59.999s"),
        (360.0, "6m0s"),
        (3723.25, "1h2m3.25s"),
    ],
)
def test_durations_are_written_as_gos(seconds: float, shown: str) -> None:
    assert go_duration(seconds) == shown
