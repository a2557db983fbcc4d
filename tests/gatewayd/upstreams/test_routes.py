"""Routes of other APIs over an upstream: responses, batches, Ollama's, and the list of models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ollama
import pytest

from gatewayd.text.text_model import TextModel
from gatewayd_hooks.protocols import ProtocolStrategy
from gatewayd_hooks.resources import GatewayResources
from gatewayd_proto_ollama.config import OllamaConfig
from gatewayd_proto_ollama.strategy import Ollama
from tests.gatewayd.batch_gateway import create, jsonl, line, results, until_status
from tests.gatewayd.fake_fleet import FakeFleet
from tests.gatewayd.gateway import running
from tests.gatewayd.store_fixtures import copy_of, opened
from tests.gatewayd.upstreams.fake_upstream import (
    USAGE,
    chunk,
    event,
    fake_upstream,
    hangs,
    says,
    sends,
)


@pytest.fixture
def folder(fresh_store: Path, tmp_path: Path) -> Path:
    return copy_of(fresh_store, tmp_path / "store")


async def test_responses_and_their_conversations(text: TextModel, folder: Path) -> None:
    with opened(folder) as durable:
        async with (
            fake_upstream(says) as upstream,
            running(
                text, FakeFleet(), durable=durable, upstreams={"one": upstream.entry()}
            ) as gateway,
        ):
            client = gateway.openai.responses
            first = await client.create(model="far", input="hi", instructions="be brief")
            second = await client.create(
                model="far", input="and now?", previous_response_id=first.id
            )
            streamed = await client.create(model="far", input="hi", stream=True)
            kinds = [found.type async for found in streamed]
        assert (first.output_text, second.output_text) == ("Hello there.", "Hello there.")
        assert first.usage is not None
        assert first.usage.input_tokens == USAGE["prompt_tokens"]
        assert kinds[-1] == "response.completed"
    sent = [message["content"] for message in upstream.bodies[1]["messages"]]
    assert sent[-3:] == ["hi", "Hello there.", "and now?"]
    assert upstream.bodies[0]["model"] == "theirs"


async def test_batches(text: TextModel, folder: Path) -> None:
    with opened(folder) as durable:
        async with (
            fake_upstream(says) as upstream,
            running(
                text, FakeFleet(), durable=durable, upstreams={"one": upstream.entry()}
            ) as gateway,
        ):
            lines = jsonl(line(str(at), model="far") for at in range(3))
            batch = await until_status(gateway, await create(gateway, lines), "completed")
            found = await results(gateway, batch.output_file_id)
    texts = [one["response"]["body"]["choices"][0]["message"]["content"] for one in found]
    assert texts == ["Hello there."] * 3


async def test_ollamas_client(text: TextModel) -> None:
    protocol: ProtocolStrategy = Ollama(OllamaConfig())
    protocol.open(GatewayResources("nano", 1))
    async with (
        fake_upstream(says, says, sends(event({"choices": [TEXT]}))) as upstream,
        running(
            text,
            FakeFleet(),
            protocols=[("ollama", protocol)],
            upstreams={"one": upstream.entry()},
        ) as gateway,
    ):
        client = ollama.AsyncClient(gateway.url)
        messages = [{"role": "user", "content": "hi"}]
        whole = await client.chat("far", messages)
        pieces = [piece async for piece in await client.chat("far", messages, stream=True)]
        raw = await client.generate("far", "once", raw=True)
        await client._client.aclose()
    assert whole.message.content == "Hello there."
    assert (whole.prompt_eval_count, whole.eval_count) == (11, 3)
    assert "".join([piece.message.content or "" for piece in pieces]) == "Hello there."
    assert raw.response == " upon"
    assert upstream.bodies[-1]["prompt"] == "once"


TEXT = {"index": 0, "text": " upon", "finish_reason": "stop"}


async def test_models_of_upstreams_are_listed_with_their_context(text: TextModel) -> None:
    async with (
        fake_upstream(hangs) as upstream,
        running(
            text, FakeFleet(), upstreams={"one": upstream.entry(context_length=4096)}
        ) as gateway,
    ):
        models = {model.id: model async for model in gateway.openai.models.list()}
        extra: Any = models["far"].model_extra
        assert extra["max_model_len"] == 4096
        ready = (await gateway.http.get("/readyz?verbose=1")).json()
    assert [model["model"] for model in ready["models"]] == ["nano", "far"]
    assert ready["models"][1]["replicas"] == []


async def test_reasoning_is_omitted_if_asked(text: TextModel) -> None:
    thought = {"index": 0, "delta": {"reasoning_content": "hm"}}
    answer = sends(event({"choices": [thought]}), chunk("so"), chunk(reason="stop"))
    async with (
        fake_upstream(answer) as upstream,
        running(text, FakeFleet(), upstreams={"one": upstream.entry()}) as gateway,
    ):
        body = {"model": "far", "messages": [{"role": "user", "content": "hi"}]}
        found = [
            (await gateway.http.post("/v1/chat/completions", json={**body, **more})).json()
            for more in ({}, {"include_reasoning": False})
        ]
    messages = [one["choices"][0]["message"] for one in found]
    assert messages[0]["reasoning_content"] == "hm"
    assert "reasoning_content" not in messages[1]
    assert [message["content"] for message in messages] == ["so", "so"]
