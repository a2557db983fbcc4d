"""Responses over a real port: openai's client, and every event in order."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, get_args

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from gatewayd.errors import EngineLost
from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import fails, hangs, says
from tests.gatewayd.gateway import Gateway, until
from tests.gatewayd.responses_gateway import ANSWER, ORDER, ask, checked, message_of, serving

STRICT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


async def test_a_response_is_what_the_client_expects(gateway: Gateway, text: TextModel) -> None:
    response = checked(
        await ask(gateway, instructions="be brief", metadata={"k": "v"}, temperature=0.5)
    )
    assert response.output_text == text.tokenizer.decode(ANSWER)
    assert (response.status, response.object, response.model) == ("completed", "response", "nano")
    message = message_of(response)
    assert (message.role, message.status) == ("assistant", "completed")
    assert (response.instructions, response.metadata) == ("be brief", {"k": "v"})
    assert (response.temperature, response.top_p) == (0.5, 1.0)
    assert response.completed_at is not None
    usage = response.usage
    assert usage is not None
    assert usage.input_tokens == len(gateway.fleet.jobs[0].request.prompt)
    assert usage.output_tokens == len(ANSWER)
    assert usage.input_tokens_details.cached_tokens == 1
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens


async def test_the_cache_is_told_what_a_chat_tells_it(gateway: Gateway) -> None:
    fields = {"cache_salt": "s", "prompt_cache_key": "thread 7", "prompt_cache_retention": "24h"}
    body = {"model": "nano", "input": "x", **fields}
    response = await gateway.http.post("/v1/responses", json=body)
    assert response.status_code == 200, response.text
    assert "x-gateway-ignored-params" not in response.headers
    chat = {"model": "nano", "messages": [{"role": "user", "content": "x"}], **fields}
    await gateway.http.post("/v1/chat/completions", json=chat)
    mine, theirs = [job.request for job in gateway.fleet.jobs]
    assert (mine.cache_key, len(mine.salt)) == ("thread 7", 16)
    assert (mine.salt, mine.cache_key, mine.retention) == (
        theirs.salt,
        theirs.cache_key,
        theirs.retention,
    )
    assert mine.retention is not None


async def test_the_prompt_is_that_of_the_same_chat(gateway: Gateway) -> None:
    conversation = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": [{"type": "input_text", "text": "three"}]},
    ]
    await ask(gateway, input=conversation, instructions="be brief")
    await gateway.openai.chat.completions.create(
        model="nano",
        messages=[
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "two"},
            {"role": "user", "content": "three"},
        ],
    )
    mine, theirs = [job.request for job in gateway.fleet.jobs]
    assert mine.prompt == theirs.prompt
    assert mine.params == theirs.params


async def test_a_stream_has_every_event_in_order(gateway: Gateway, text: TextModel) -> None:
    stream = await gateway.openai.responses.create(model="nano", input="hi", stream=True)
    events = [event async for event in stream]
    for event in events:
        STRICT.validate_python(event.model_dump())
        assert isinstance(event, get_args(get_args(ResponseStreamEvent)[0]))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert list(dict.fromkeys(event.type for event in events)) == ORDER
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == text.tokenizer.decode(ANSWER)
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == text.tokenizer.decode(ANSWER)
    stored = await gateway.openai.responses.retrieve(last.response.id)
    assert stored == last.response
    ids = {event.item_id for event in events if hasattr(event, "item_id")}
    assert ids == {last.response.output[0].id}


async def test_the_clients_own_accumulation_agrees(gateway: Gateway) -> None:
    async with gateway.openai.responses.stream(model="nano", input="hi") as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_response()
    assert final.output_text
    assert final.status == "completed"


async def test_a_cut_answer_is_incomplete(gateway: Gateway) -> None:
    response = checked(await ask(gateway, max_output_tokens=2))
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert message_of(response).status == "incomplete"
    stream = await gateway.openai.responses.create(
        model="nano", input="hi", max_output_tokens=2, stream=True
    )
    assert [event.type async for event in stream][-1] == "response.incomplete"


async def test_log_probabilities_come_where_they_are_asked_for(gateway: Gateway) -> None:
    fields: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    response = checked(await ask(gateway, **fields))
    (part,) = message_of(response).content
    assert part.type == "output_text"
    logprobs = part.logprobs
    assert logprobs is not None
    assert len(logprobs) == len(ANSWER)
    assert all(len(one.top_logprobs) == 2 for one in logprobs)
    stream = await gateway.openai.responses.create(model="nano", input="hi", stream=True, **fields)
    told = [
        one
        async for event in stream
        if event.type == "response.output_text.delta"
        for one in event.logprobs
    ]
    assert [one.token for one in told] == [one.token for one in logprobs]


async def test_what_fails_before_the_first_event_has_a_status(
    text: TextModel, folder: Path
) -> None:
    async with serving(text, folder, fails(EngineLost("the engine died"))) as gateway:
        for stream in (False, True):
            answer = await gateway.http.post(
                "/v1/responses", json={"model": "nano", "input": "x", "stream": stream}
            )
            assert answer.status_code == 500
            assert answer.json()["error"]["code"] == "engine_restarted"


async def test_what_fails_later_is_the_last_event(text: TextModel, folder: Path) -> None:
    async with serving(text, folder, fails(EngineLost("the engine died"), ANSWER)) as gateway:
        stream = await gateway.openai.responses.create(model="nano", input="hi", stream=True)
        events = [event async for event in stream]
        last = events[-1]
        assert last.type == "response.failed"
        assert await gateway.openai.responses.retrieve(last.response.id) == last.response
    assert last.response.status == "failed"
    assert last.response.error is not None
    assert "the engine died" in last.response.error.message
    message = message_of(last.response)
    assert message.status == "incomplete"
    told = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(part.text for part in message.content if part.type == "output_text") == "".join(
        told
    )
    assert [event.sequence_number for event in events] == list(range(len(events)))


async def test_a_client_that_leaves_stops_the_engine_and_leaves_nothing(
    text: TextModel, folder: Path
) -> None:
    async with serving(text, folder, hangs) as gateway:
        for stream in (False, True):
            body = {"model": "nano", "input": "x", "stream": stream}
            count = len(gateway.fleet.jobs)
            asked = asyncio.create_task(gateway.http.post("/v1/responses", json=body))
            await until(lambda count=count: len(gateway.fleet.jobs) > count)  # type: ignore[misc]
            asked.cancel()
            await until(lambda: gateway.fleet.jobs[-1].gone.is_set())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "clown", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0].type",
        ),
        ({"input": [{"type": "item_reference"}]}, "input[0].id"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 1 << 20}, "max_output_tokens"),
        ({"input": "word " * 5000}, "input"),
        ({"temperature": 3}, "temperature"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"truncation": "always"}, "truncation"),
        ({"truncation": "auto", "input": "word " * 5000}, "input"),
        ({"truncation": "auto", "max_output_tokens": 1 << 20}, "max_output_tokens"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True, "store": False}, "store"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
    ],
)
async def test_a_wrong_request_is_one_clear_400(
    gateway: Gateway, fields: dict[str, Any], param: str
) -> None:
    answer = await gateway.http.post(
        "/v1/responses", json={"model": "nano", "input": "hi", **fields}
    )
    error = answer.json()["error"]
    assert answer.status_code == 400, error
    assert error["param"] == param, error
    assert "messages" not in error["message"]
    assert "completion" not in error["message"]
    assert gateway.fleet.jobs == []


async def test_responses_run_in_batches(text: TextModel, folder: Path) -> None:
    line = {
        "custom_id": "a",
        "method": "POST",
        "url": "/v1/responses",
        "body": {"model": "nano", "input": "hi"},
    }
    async with serving(text, folder, says(ANSWER)) as gateway:
        client = gateway.openai
        file = await client.files.create(file=("f", json.dumps(line).encode()), purpose="batch")
        batch = await client.batches.create(
            input_file_id=file.id, endpoint="/v1/responses", completion_window="24h"
        )
        async with asyncio.timeout(30):
            while (batch := await client.batches.retrieve(batch.id)).status != "completed":
                await asyncio.sleep(0.01)
        assert batch.output_file_id is not None
        (result,) = (await client.files.content(batch.output_file_id)).text.splitlines()
    body = json.loads(result)["response"]["body"]
    assert Response.model_validate(body).output_text
    assert batch.usage is not None
    assert batch.usage.output_tokens == len(ANSWER)
