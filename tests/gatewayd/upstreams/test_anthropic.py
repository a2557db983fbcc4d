"""An upstream with Anthropic's API: a gateway's own protocol, whose answers both give."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import anthropic
import pytest
from aiohttp import web
from pydantic import SecretStr

from gatewayd.config.upstreams import UpstreamEntry
from gatewayd.text.text_model import TextModel
from gatewayd_engine.offline.train.chats import LOOKUP
from gatewayd_proto_anthropic.strategy import Anthropic
from tests.gatewayd.fake_fleet import FakeFleet, Script, says
from tests.gatewayd.gateway import Gateway, running
from tests.gatewayd.http.openai.fake_parsers import parsers
from tests.gatewayd.upstreams.fake_upstream import fake_upstream, refuses, sends

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi there"}], "max_tokens": 40}
CALL = '<tool_call>\n{"name": "lookup", "arguments": {"symbol": "a.b"}}\n</tool_call>'
THOUGHT = f"<think>well, let me see</think>\nI look it up.\n{CALL}"


class Pair(NamedTuple):
    """A gateway whose model ``far`` is ``nano`` of another, over Anthropic's API."""

    upstream: Gateway
    gateway: Gateway


@asynccontextmanager
async def pair(text: TextModel, script: Script, *, thinks: bool = False) -> AsyncIterator[Pair]:
    own = parsers(reasoning=True) if thinks else None
    protocols = [("anthropic", Anthropic())]
    for _, protocol in protocols:
        protocol.open(None)  # type: ignore[arg-type]
    async with running(
        text, FakeFleet(script), parsers=own, protocols=protocols, api_key="the-upstreams"
    ) as upstream:
        entry = UpstreamEntry(
            strategy="anthropic",
            url=f"{upstream.url}/v1",
            api_key=SecretStr("the-upstreams"),
            models={"far": "nano"},
        )
        async with running(
            text, FakeFleet(), protocols=protocols, upstreams={"one": entry}
        ) as gateway:
            yield Pair(upstream, gateway)


async def both(two: Pair, body: dict[str, Any]) -> tuple[Any, Any]:
    key = {"authorization": "Bearer the-upstreams"}
    path = "/v1/chat/completions"
    direct = await two.upstream.http.post(path, json={**body, "model": "nano"}, headers=key)
    relayed = await two.gateway.http.post(path, json={**body, "model": "far"})
    assert (direct.status_code, relayed.status_code) == (200, 200), relayed.text
    return direct.json(), relayed.json()


def compared(answer: dict[str, Any]) -> dict[str, Any]:
    [choice] = answer["choices"]
    message = choice["message"]
    for call in message.get("tool_calls", ()):
        assert call.pop("id")
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    usage = {
        name: count for name, count in answer["usage"].items() if "completion_tokens_" not in name
    }
    return {"message": message, "reason": choice["finish_reason"], "usage": usage}


@pytest.mark.parametrize("fields", [{}, {"max_tokens": 3}, {"stop": ["dear"]}])
async def test_chats_are_those_of_the_upstream(text: TextModel, fields: dict[str, Any]) -> None:
    ids = text.tokenizer.encode("Hello there, dear reader.")
    async with pair(text, says(ids, cached=2)) as two:
        direct, relayed = await both(two, {**CHAT, **fields})
        assert compared(relayed) == compared(direct)
        one, other = [job.request for job in two.upstream.fleet.jobs]
    assert list(one.prompt) == list(other.prompt)
    assert one.params.max_tokens == other.params.max_tokens


async def test_tools_and_reasoning_are_those_of_the_upstream(text: TextModel) -> None:
    ids = text.tokenizer.encode(THOUGHT, trusted=True)
    async with pair(text, says(ids), thinks=True) as two:
        direct, relayed = await both(two, {**CHAT, "tools": [LOOKUP], "tool_choice": "auto"})
    assert relayed["choices"][0]["message"]["tool_calls"][0]["id"].startswith("toolu_")
    assert compared(relayed) == compared(direct)


async def test_the_upstream_gets_the_whole_conversation(text: TextModel) -> None:
    call = {"name": "lookup", "arguments": '{"symbol": "a.b"}'}
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "what is a.b?"},
        {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "c1", "content": "a field"},
    ]
    async with pair(text, says([5, 6]), thinks=True) as two:
        await both(two, {**CHAT, "messages": messages, "tools": [LOOKUP]})
        one, other = [job.request.prompt for job in two.upstream.fleet.jobs]
    assert text.tokenizer.decode(other) == text.tokenizer.decode(one)


async def test_anthropics_client_gets_through_two_translations(text: TextModel) -> None:
    ids = text.tokenizer.encode(THOUGHT, trusted=True)
    async with pair(text, says(ids), thinks=True) as two:
        spec: Any = LOOKUP["function"]
        tool: Any = {"name": "lookup", "input_schema": spec["parameters"]}
        client = anthropic.AsyncAnthropic(base_url=two.gateway.url, api_key="none")
        async with (
            client,
            client.messages.stream(
                model="far",
                max_tokens=60,
                messages=CHAT["messages"],
                tools=[tool],
            ) as stream,
        ):
            found = await stream.get_final_message()
    kinds = [block.type for block in found.content]
    assert kinds == ["thinking", "text", "tool_use"]
    assert found.content[2].input == {"symbol": "a.b"}  # type: ignore[union-attr]
    assert found.stop_reason == "tool_use"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"seed": 5}, "seed"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
)
async def test_fields_without_a_counterpart_are_refused(
    text: TextModel, fields: dict[str, Any], param: str
) -> None:
    async with pair(text, says([5])) as two:
        answer = await two.gateway.http.post(
            "/v1/chat/completions", json={**CHAT, **fields, "model": "far"}
        )
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
        assert not two.upstream.fleet.jobs


def event(**fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (fields["type"].encode(), json.dumps(fields).encode())


START = event(type="message_start", message={"usage": {"input_tokens": 9, "output_tokens": 1}})
WORD = event(type="content_block_delta", index=0, delta={"type": "text_delta", "text": "hi"})
ARGUMENTS = event(
    type="content_block_delta", index=4, delta={"type": "input_json_delta", "partial_json": "{"}
)


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (refuses(529), 503, "upstream_busy"),
        (refuses(401), 502, "upstream_refused"),
        (refuses(400, {"error": {"message": "a reason"}}), 400, "invalid_value"),
        (
            sends(START, event(type="error", error={"type": "overloaded_error"})),
            503,
            "upstream_busy",
        ),
        (sends(START, WORD), 502, "upstream_error"),
        (sends(START, ARGUMENTS), 502, "upstream_error"),
        (sends(b"data: [1]\n\n"), 502, "upstream_error"),
        (sends(START, WORD, ends="hangs"), 504, "upstream_timeout"),
    ],
)
async def test_faults_have_their_status(
    text: TextModel, fault: Any, status: int, code: str
) -> None:
    async with (
        fake_upstream(fault) as upstream,
        running(
            text, FakeFleet(), upstreams={"one": upstream.entry(strategy="anthropic")}
        ) as gateway,
    ):
        answer = await gateway.http.post("/v1/chat/completions", json={**CHAT, "model": "far"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


async def test_a_call_without_arguments_has_an_empty_object(text: TextModel) -> None:
    block = {"type": "tool_use", "id": "t1", "name": "now"}
    pieces = (
        START,
        event(type="content_block_start", index=1, content_block=block),
        event(type="content_block_stop", index=1),
        event(type="message_delta", delta={"stop_reason": "tool_use"}, usage={"output_tokens": 7}),
        event(type="message_stop"),
    )
    seen: list[web.Request] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        seen.append(request)
        return await sends(*pieces)(request)

    async with (
        fake_upstream(answer) as upstream,
        running(
            text, FakeFleet(), upstreams={"one": upstream.entry(strategy="anthropic", api_key="k")}
        ) as gateway,
    ):
        found = await gateway.http.post("/v1/chat/completions", json={**CHAT, "model": "far"})
    [call] = found.json()["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "now", "arguments": "{}"}
    usage = found.json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (9, 7)
    assert seen[0].headers["x-api-key"] == "k"
    assert seen[0].headers["anthropic-version"] == "2023-06-01"
