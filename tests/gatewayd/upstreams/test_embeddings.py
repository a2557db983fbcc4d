"""Embeddings of an upstream: what clients get, what the upstream gets, and what is charged."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import ollama
import openai
import pytest
from pydantic import SecretStr

from gatewayd.config.upstreams import UpstreamEntry
from gatewayd.text.text_model import TextModel
from gatewayd_hooks.protocols import ProtocolStrategy
from gatewayd_hooks.resources import GatewayResources
from gatewayd_proto_ollama.config import OllamaConfig
from gatewayd_proto_ollama.strategy import Ollama
from tests.gatewayd.batch_gateway import create, jsonl, results, until_status
from tests.gatewayd.fake_fleet import FakeFleet
from tests.gatewayd.gateway import Gateway, running, until
from tests.gatewayd.http.vectors.test_embeddings import pools
from tests.gatewayd.store_fixtures import copy_of, opened
from tests.gatewayd.upstreams.fake_embeddings import (
    DIMENSIONS,
    Embeds,
    answers,
    begins,
    row,
    vector_of,
)
from tests.gatewayd.upstreams.fake_upstream import FakeUpstream, fake_upstream, refuses
from tests.gatewayd.upstreams.fake_upstream import hangs as silence

TEXTS = ["one", "another text", "é 🙂"]
PATH = "/v1/embeddings"
BODY = {"model": "far", "input": TEXTS}


@asynccontextmanager
async def relaying(
    text: TextModel, *given: Any, **entry: Any
) -> AsyncIterator[tuple[Gateway, FakeUpstream]]:
    async with (
        fake_upstream(*given) as upstream,
        running(text, FakeFleet(), upstreams={"one": upstream.entry(**entry)}) as gateway,
    ):
        yield gateway, upstream


@pytest.fixture
def folder(fresh_store: Path, tmp_path: Path) -> Path:
    return copy_of(fresh_store, tmp_path / "store")


@pytest.mark.parametrize("is_plain", [False, True])
async def test_the_sdk_gets_the_upstreams_vectors_in_order(text: TextModel, is_plain: bool) -> None:
    embeds = Embeds(is_plain=is_plain)
    async with relaying(text, embeds) as (gateway, upstream):
        create_ = gateway.openai.embeddings.create
        # The SDK asks for base64 unless it is told a format.
        unpacked = await create_(model="far", input=TEXTS)
        plain = await create_(model="far", input=TEXTS, encoding_format="float")
        single = await create_(model="far", input="one", dimensions=3)
        finished = await gateway.until_finished(3)
    for found in (unpacked, plain):
        assert (found.object, found.model) == ("list", "far")
        assert [one.index for one in found.data] == [0, 1, 2]
        for one, given in zip(found.data, TEXTS, strict=True):
            np.testing.assert_allclose(one.embedding, vector_of(given), rtol=1e-6)
        assert found.usage.prompt_tokens == found.usage.total_tokens == sum(map(len, TEXTS)) + 3
    # As the upstream wrote them, to the last digit.
    assert plain.data[1].embedding == vector_of(TEXTS[1]).tolist()
    np.testing.assert_allclose(single.data[0].embedding, vector_of("one", 3), rtol=1e-6)
    assert upstream.bodies[0] == {"model": "theirs", "input": TEXTS, "encoding_format": "base64"}
    assert upstream.bodies[2]["dimensions"] == 3
    assert upstream.bodies[2]["input"] == "one"
    assert [one.outcome for one in finished] == ["stop"] * 3
    assert sum(one.prompt_tokens for one in finished) == embeds.charged
    assert {one.completion_tokens for one in finished} == {0}


@pytest.mark.parametrize("given", [[5, 6, 7], [[5, 6], [7]]])
async def test_token_ids_are_passed_on(text: TextModel, given: Any) -> None:
    async with relaying(text, Embeds()) as (gateway, upstream):
        found = await gateway.openai.embeddings.create(model="far", input=given)
    assert upstream.bodies[0]["input"] == given
    assert len(found.data) == (1 if given == [5, 6, 7] else 2)


async def test_fields_are_checked_here_and_passed_on_as_far_as_an_upstream_acts_on_them(
    text: TextModel,
) -> None:
    async with relaying(text, Embeds(), api_key="the-key") as (gateway, upstream):
        refused = await gateway.http.post(PATH, json={**BODY, "encoding_format": "int8"})
        empty = await gateway.http.post(PATH, json={**BODY, "input": []})
        fields = {"user": "me", "priority": "batch", "cache_salt": "s", "normalize": False}
        taken = await gateway.http.post(PATH, json={**BODY, **fields, "unknown": 1})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "encoding_format")
    assert empty.status_code == 400
    assert upstream.bodies == [{"model": "theirs", "input": TEXTS, "normalize": False}]
    # The request id of the answer is the one that the upstream got.
    assert taken.headers["x-request-id"] == upstream.headers[0]["x-request-id"]
    assert upstream.headers[0]["authorization"] == "Bearer the-key"
    assert taken.headers["x-gateway-ignored-params"] == "unknown"
    assert float(taken.headers["openai-processing-ms"]) >= 0


async def test_base64_of_numbers_is_float32(text: TextModel) -> None:
    async with relaying(text, answers(row(0, [0.1, -2, 3]))) as (gateway, _):
        body = {"model": "far", "input": "hi", "encoding_format": "base64"}
        found = (await gateway.http.post(PATH, json=body)).json()
    assert found["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    numbers = np.frombuffer(base64.b64decode(found["data"][0]["embedding"]), "<f4")
    assert numbers.tolist() == np.array([0.1, -2, 3], "<f4").tolist()


async def test_a_strategy_without_embeddings_is_named(text: TextModel) -> None:
    async with relaying(text, Embeds(), strategy="anthropic") as (gateway, upstream):
        answer = await gateway.http.post(PATH, json=BODY)
        assert not upstream.bodies
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "model_not_local", "model")
    assert "strategy anthropic, which has no embeddings" in error["message"]


@pytest.mark.parametrize("begun", [False, True])
async def test_a_client_that_disconnects_ends_the_upstreams_request(
    text: TextModel, begun: bool
) -> None:
    fault = begins(b'{"data":', ends="hangs") if begun else silence
    seconds = {"first_token_seconds": 30, "between_tokens_seconds": 30}
    async with relaying(text, fault, **seconds) as (gateway, upstream):
        with pytest.raises(httpx.ReadTimeout):
            await gateway.http.post(PATH, json=BODY, timeout=0.3)
        await until(lambda: upstream.num_gone == 1)
        [finished] = await gateway.until_finished()
        assert finished.outcome == "abort"
        fleet = gateway.upstreams[0].fleet
        await until(lambda: not fleet.num_unfinished and not fleet.endpoints.all[0].num_running)


async def test_ollamas_client(text: TextModel) -> None:
    protocol: ProtocolStrategy = Ollama(OllamaConfig())
    protocol.open(GatewayResources("nano", 1))
    embeds = Embeds()
    async with (
        fake_upstream(embeds) as upstream,
        running(
            text,
            FakeFleet(),
            protocols=[("ollama", protocol)],
            upstreams={"one": upstream.entry()},
        ) as gateway,
    ):
        client = ollama.AsyncClient(gateway.url)
        found = await client.embed("far", TEXTS)
        older = await client.embeddings("far", "one")
        await client._client.aclose()
    assert [list(one) for one in found.embeddings] == [vector_of(one).tolist() for one in TEXTS]
    assert list(older.embedding) == vector_of("one").tolist()
    assert found.prompt_eval_count == sum(map(len, TEXTS)) + 3
    # No field that a cloud would refuse.
    assert upstream.bodies == [
        {"model": "theirs", "input": TEXTS},
        {"model": "theirs", "input": "one"},
    ]


async def test_batches(text: TextModel, folder: Path) -> None:
    embeds = Embeds()
    lines = [
        {"custom_id": str(at), "method": "POST", "url": PATH, "body": {**BODY, "input": one}}
        for at, one in enumerate(TEXTS)
    ]
    with opened(folder) as durable:
        async with (
            fake_upstream(embeds) as upstream,
            running(
                text, FakeFleet(), durable=durable, upstreams={"one": upstream.entry()}
            ) as gateway,
        ):
            made = await create(gateway, jsonl(lines), endpoint=PATH)
            batch = await until_status(gateway, made, "completed")
            found = await results(gateway, batch.output_file_id)
    bodies = {one["custom_id"]: one["response"]["body"] for one in found}
    for at, one in enumerate(TEXTS):
        assert bodies[str(at)]["data"][0]["embedding"] == vector_of(one).tolist()
        assert bodies[str(at)]["model"] == "far"


async def test_vectors_of_another_gateway_are_the_same(text: TextModel) -> None:
    async with running(text, FakeFleet(pools()), api_key="the-upstreams") as behind:
        entry = UpstreamEntry(
            url=f"{behind.url}/v1", models={"far": "nano"}, api_key=SecretStr("the-upstreams")
        )
        async with running(text, FakeFleet(), upstreams={"one": entry}) as gateway:
            for fields in (
                {},
                {"dimensions": 3},
                {"normalize": False, "pooling": "last"},
                {"truncate_prompt_tokens": 2, "truncation_side": "left"},
                {"input": [5, 6, 7], "add_special_tokens": False},
                {"encoding_format": "base64"},
            ):
                body = {**BODY, **fields}
                relayed = await gateway.http.post(PATH, json=body)
                direct = await behind.http.post(
                    PATH,
                    json={**body, "model": "nano"},
                    headers={"authorization": "Bearer the-upstreams"},
                )
                assert relayed.status_code == 200
                assert relayed.json() == {**direct.json(), "model": "far"}


async def test_the_sdk_sees_an_error_of_the_upstream_as_its_own_kind(text: TextModel) -> None:
    async with relaying(text, refuses(400, {"error": {"message": "too long"}})) as (gateway, _):
        with pytest.raises(openai.BadRequestError, match="the upstream one refuses"):
            await gateway.openai.embeddings.create(model="far", input="hi")


async def test_many_inputs_are_one_request(text: TextModel) -> None:
    given = [str(at) for at in range(2048)]
    async with relaying(text, Embeds()) as (gateway, upstream):
        found = await gateway.openai.embeddings.create(model="far", input=given)
        over = await gateway.http.post(PATH, json={**BODY, "input": [*given, "one more"]})
        assert len(upstream.bodies) == 1
    assert [len(one.embedding) for one in found.data] == [DIMENSIONS] * 2048
    assert over.status_code == 400


async def test_metrics_count_them(text: TextModel) -> None:
    async with relaying(text, Embeds()) as (gateway, _):
        await asyncio.gather(*[gateway.http.post(PATH, json=BODY) for _ in range(3)])
        await gateway.until_finished(3)
        page = (await gateway.http.get("/metrics")).text
    tokens = 3 * (sum(map(len, TEXTS)) + 3)
    lines = [line for line in page.splitlines() if 'model_name="far"' in line]
    shown = {line.partition("{")[0]: float(line.rsplit(" ", 1)[1]) for line in lines}
    assert shown["vllm:prompt_tokens_total"] == tokens
