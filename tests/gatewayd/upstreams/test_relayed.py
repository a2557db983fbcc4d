"""A gateway over another one: answers equal those of the upstream asked directly."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx
import pytest
from pydantic import SecretStr

from gatewayd.config.upstreams import UpstreamEntry
from gatewayd.text.text_model import TextModel
from gatewayd_engine.offline.train.chats import LOOKUP
from tests.gatewayd.fake_fleet import FakeFleet, Script, hangs, says
from tests.gatewayd.gateway import Gateway, running, until
from tests.gatewayd.http.openai.fake_parsers import parsers

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi there"}]}
CALL = '<tool_call>\n{"name": "lookup", "arguments": {"symbol": "a.b"}}\n</tool_call>'
THOUGHT = f"<think>well, let me see</think>\nI look it up.\n{CALL}"
OWN = ("id", "created", "model")
"""Fields that each gateway gives itself."""


class Pair(NamedTuple):
    """A gateway whose model ``far`` is ``nano`` of another gateway."""

    upstream: Gateway
    gateway: Gateway


@asynccontextmanager
async def pair(
    text: TextModel, script: Script, *, thinks: bool = False, **entry: Any
) -> AsyncIterator[Pair]:
    own = parsers(reasoning=True) if thinks else None
    async with running(text, FakeFleet(script), parsers=own, api_key="the-upstreams") as upstream:
        fields = {"url": f"{upstream.url}/v1", "models": {"far": "nano"}, **entry}
        upstreams = {"one": UpstreamEntry(**fields, api_key=SecretStr("the-upstreams"))}
        async with running(text, FakeFleet(), upstreams=upstreams) as gateway:
            yield Pair(upstream, gateway)


def without(answer: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name not in (*OWN, *names)}


async def both(two: Pair, path: str, body: dict[str, Any]) -> tuple[Any, Any]:
    """The answers of the upstream itself and of the gateway in front of it."""
    key = {"authorization": "Bearer the-upstreams"}
    direct = await two.upstream.http.post(path, json={**body, "model": "nano"}, headers=key)
    relayed = await two.gateway.http.post(path, json={**body, "model": "far"})
    assert (direct.status_code, relayed.status_code) == (200, 200), relayed.text
    if not body.get("stream"):
        assert relayed.json()["model"] == "far"
        return direct.json(), relayed.json()
    return events(direct.text), events(relayed.text)


def events(text: str) -> list[Any]:
    data = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    return [json.loads(one) for one in data[:-1]]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 2},
        {"max_tokens": 3},
        {"logprobs": True},
        {"logprobs": True, "top_logprobs": 2, "n": 2},
        {"max_completion_tokens": 4, "temperature": 0.5, "seed": 3, "top_p": 0.9},
        {"stop": [" there"]},
    ],
)
async def test_chats_are_those_of_the_upstream(text: TextModel, fields: dict[str, Any]) -> None:
    ids = text.tokenizer.encode("Hello there, dear reader of é 🙂.")
    async with pair(text, says(ids, cached=2)) as two:
        direct, relayed = await both(two, "/v1/chat/completions", {**CHAT, **fields})
        assert without(relayed) == without(direct)
        sent = [job.request.params for job in two.upstream.fleet.jobs]
        assert sent[0] == sent[1]
        body = {**CHAT, **fields, "stream": True, "stream_options": {"include_usage": True}}
        direct, relayed = await both(two, "/v1/chat/completions", body)
        assert joined(relayed) == joined(direct)


def joined(chunks: list[Any]) -> dict[str, Any]:
    """What a client makes of a stream, whose pieces may be cut elsewhere."""
    found: dict[str, Any] = {"usage": chunks[-1]["usage"]}
    for choice in [one for chunk in chunks for one in chunk["choices"]]:
        own = found.setdefault(str(choice["index"]), {"text": "", "logprobs": [], "reason": None})
        own["text"] += choice.get("text") or (choice.get("delta") or {}).get("content") or ""
        logprobs = choice["logprobs"] or {}
        own["logprobs"] += logprobs.get("content") or logprobs.get("tokens") or []
        own["reason"] = own["reason"] or choice["finish_reason"]
    return found


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"prompt": ["one", "two"], "n": 2},
        {"max_tokens": 3, "echo": True},
        {"logprobs": 2},
        {"logprobs": 0, "prompt": ["one", "two"]},
    ],
)
async def test_text_completions_are_those_of_the_upstream(
    text: TextModel, fields: dict[str, Any]
) -> None:
    ids = text.tokenizer.encode(" upon a time there was a reader.")
    body = {"prompt": "once", **fields}
    async with pair(text, says(ids)) as two:
        direct, relayed = await both(two, "/v1/completions", body)
        assert without(relayed) == without(direct)
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        direct, relayed = await both(two, "/v1/completions", body)
        assert joined(relayed) == joined(direct)


async def test_tool_calls_and_reasoning_are_those_of_the_upstream(text: TextModel) -> None:
    ids = text.tokenizer.encode(THOUGHT, trusted=True)
    body = {**CHAT, "tools": [LOOKUP], "tool_choice": "auto"}
    async with pair(text, says(ids), thinks=True) as two:
        direct, relayed = await both(two, "/v1/chat/completions", body)
        # Each upstream request has its own ids of calls; the gateway passes on what it gets.
        for answer in (direct, relayed):
            [call] = answer["choices"][0]["message"]["tool_calls"]
            assert call.pop("id").startswith("call_")
        assert without(relayed) == without(direct)
        assert relayed["choices"][0]["finish_reason"] == "tool_calls"
        stream = await two.gateway.openai.chat.completions.create(model="far", stream=True, **body)
        chunks = [chunk async for chunk in stream]
    calls = [one for c in chunks for one in c.choices[0].delta.tool_calls or []]
    assert "".join([call.function.arguments for call in calls if call.function]) == (
        '{"symbol": "a.b"}'
    )
    assert calls[0].id


async def test_the_upstream_gets_the_whole_conversation(text: TextModel) -> None:
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "be brief"}]},
        {"role": "user", "content": "what is a.b?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "lookup", "arguments": '{"symbol": "a.b"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "a field"},
    ]
    body = {"messages": messages, "tools": [LOOKUP]}
    async with pair(text, says([5, 6]), thinks=True) as two:
        await both(two, "/v1/chat/completions", body)
        direct, relayed = [job.request.prompt for job in two.upstream.fleet.jobs]
    assert list(relayed) == list(direct)


async def test_a_schema_reaches_the_upstream_as_it_is(text: TextModel) -> None:
    schema = {"type": "object", "properties": {"a": {"const": None}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    async with pair(text, says([5, 6])) as two:
        await both(two, "/v1/chat/completions", {**CHAT, "response_format": form})
        direct, relayed = [job.request.params.guide for job in two.upstream.fleet.jobs]
    assert relayed is not None
    assert relayed == direct


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_disconnects_ends_the_upstreams_request(
    text: TextModel, stream: bool
) -> None:
    async with pair(text, hangs) as two:
        asking = two.gateway.http.post(
            "/v1/chat/completions", json={**CHAT, "model": "far", "stream": stream}, timeout=0.3
        )
        with pytest.raises(httpx.ReadTimeout):
            await asking
        await until(lambda: two.upstream.fleet.jobs and two.upstream.fleet.jobs[0].gone.is_set())
        [finished] = await two.gateway.until_finished()
        assert finished.outcome == "abort"


async def test_usage_of_requests_is_the_upstreams(text: TextModel) -> None:
    async with pair(text, says([5, 6, 7], cached=1)) as two:
        _, relayed = await both(two, "/v1/chat/completions", CHAT)
        [finished] = await two.gateway.until_finished()
    usage = relayed["usage"]
    assert (finished.prompt_tokens, finished.completion_tokens, finished.cached_tokens) == (
        usage["prompt_tokens"],
        usage["completion_tokens"],
        usage["prompt_tokens_details"]["cached_tokens"],
    )


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {**CHAT, "logit_bias": {"5": 1}}, "logit_bias"),
        ("/v1/chat/completions", {**CHAT, "return_token_ids": True}, "return_token_ids"),
        ("/v1/completions", {"prompt": [5, 6]}, "prompt"),
        ("/v1/completions", {"prompt": "hi", "max_tokens": 0, "echo": True}, "echo"),
        ("/v1/rerank", {"query": "hi", "documents": ["ho"]}, "model"),
        ("/tokenize", {"prompt": "hi"}, "model"),
    ],
)
async def test_what_needs_a_local_model_is_refused(
    text: TextModel, path: str, body: dict[str, Any], param: str
) -> None:
    async with pair(text, says([5])) as two:
        answer = await two.gateway.http.post(path, json={**body, "model": "far"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
        assert "upstream one" in answer.json()["error"]["message"]
        assert not two.upstream.fleet.jobs
