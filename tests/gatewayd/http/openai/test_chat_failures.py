"""Chat failures: restarts, errors and long silences."""

from __future__ import annotations

import asyncio

import openai
import pytest

from gatewayd.errors import EngineLost, EngineUnavailable, NumericalError, QueueFull
from gatewayd.http.services import RequestLimits
from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import FakeFleet, Job, fails, hangs, says
from tests.gatewayd.gateway import CHAT, running
from tests.gatewayd.http.sse_events import MESSAGES, events


async def test_a_restarted_answer_forgets_what_was_generated(text: TextModel) -> None:
    ids = text.tokenizer.encode("hello")

    async def script(job: Job) -> None:
        for sink in job.sinks:
            sink.tokens(text.tokenizer.encode("lost words"), None)
            sink.restarted()
        await says(ids)(job)

    async with running(text, FakeFleet(script)) as gateway:
        answer = await gateway.openai.chat.completions.create(model="nano", messages=MESSAGES)
    assert answer.choices[0].message.content == "hello"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(ids)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_failure_before_the_first_token_has_its_own_status(
    text: TextModel, is_stream: bool
) -> None:
    script = fails(NumericalError("the logits are not numbers"))
    async with running(text, FakeFleet(script)) as gateway:
        response = await gateway.http.post(
            "/v1/chat/completions", json={**CHAT, "stream": is_stream}
        )
        finished = await gateway.until_finished()
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "numerical_error"
    assert finished[0].outcome == "error"


async def test_a_failure_mid_stream_is_an_error_event(text: TextModel) -> None:
    script = fails(EngineLost("the engine was lost"), after=[100, 101])
    async with running(text, FakeFleet(script)) as gateway:
        stream = await gateway.openai.chat.completions.create(
            model="nano", messages=MESSAGES, stream=True
        )
        with pytest.raises(openai.APIError, match="the engine was lost") as caught:
            async for _ in stream:
                pass
        raw = await gateway.http.post("/v1/chat/completions", json={**CHAT, "stream": True})
        finished = await gateway.until_finished(2)
    assert caught.value.code == "engine_restarted"
    assert events(raw.text)[-1]["error"]["code"] == "engine_restarted"
    assert [event.outcome for event in finished] == ["error", "error"]


async def test_text_that_comes_with_a_failure_is_told_before_it(text: TextModel) -> None:
    async def script(job: Job) -> None:
        job.sinks[0].tokens(text.tokenizer.encode("first"), None)
        await asyncio.sleep(0.02)
        job.sinks[0].tokens(text.tokenizer.encode(" second"), None)
        job.sinks[0].failed(EngineLost("the engine was lost"))

    async with running(text, FakeFleet(script)) as gateway:
        raw = await gateway.http.post("/v1/chat/completions", json={**CHAT, "stream": True})
    *told, last = events(raw.text)
    assert "".join(one["choices"][0]["delta"].get("content", "") for one in told) == "first second"
    assert last["error"]["code"] == "engine_restarted"


async def test_a_full_queue_and_a_missing_engine_say_when_to_come_back(text: TextModel) -> None:
    fleet = FakeFleet()
    async with running(text, fleet) as gateway:
        for refusal, code in (
            (QueueFull("256 requests wait", retry_after=3.2), "overloaded"),
            (EngineUnavailable("all replicas failed"), "engine_unavailable"),
        ):
            fleet.refusal = refusal
            response = await gateway.http.post("/v1/chat/completions", json=CHAT)
            assert response.status_code == 503
            assert response.json()["error"]["code"] == code
            assert int(response.headers["retry-after"]) >= 1
    assert not gateway.admitted
    assert not gateway.finished


async def test_a_request_waits_while_the_model_is_loaded(text: TextModel) -> None:
    fleet = FakeFleet(says(text.tokenizer.encode("hello")))
    model, fleet.model = fleet.model, None
    async with running(text, fleet) as gateway:
        asked = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=CHAT))
        counted = asyncio.create_task(gateway.http.post("/tokenize", json={"prompt": "hi"}))
        await asyncio.sleep(0.05)
        assert not asked.done()
        assert not counted.done()
        fleet.model = model
        assert (await asked).json()["choices"][0]["message"]["content"] == "hello"
        assert (await counted).json()["count"] > 0


async def test_a_request_does_not_wait_for_ever_while_the_model_is_loaded(text: TextModel) -> None:
    fleet = FakeFleet()
    fleet.model = None
    async with running(text, fleet, limits=RequestLimits(load_seconds=0.05)) as gateway:
        for path, body in (("/v1/chat/completions", CHAT), ("/tokenize", {"prompt": "hi"})):
            loading = await gateway.http.post(path, json=body)
            assert loading.status_code == 503
            assert "not loaded" in loading.json()["error"]["message"]
            assert int(loading.headers["retry-after"]) >= 1


async def test_a_silent_stream_is_kept_alive(text: TextModel) -> None:
    limits = RequestLimits(ping_seconds=0.05)
    async with (
        running(text, FakeFleet(hangs), limits=limits) as gateway,
        gateway.http.stream(
            "POST", "/v1/chat/completions", json={**CHAT, "stream": True}
        ) as response,
    ):
        lines = response.aiter_lines()
        found = [await anext(lines) for _ in range(6)]
    assert response.status_code == 200
    assert found.count(": ping") >= 2
