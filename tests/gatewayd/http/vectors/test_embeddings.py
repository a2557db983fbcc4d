"""Embeddings over a fake fleet: sums, shapes, refusals."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import numpy as np
import openai
import pytest

from gatewayd.errors import NumericalError
from gatewayd.fairness.queue_capacity import QueueCapacity
from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import (
    CONTEXT,
    HIDDEN_SIZE,
    FakeFleet,
    Job,
    Script,
    fails,
    hangs,
    model_info,
    says,
)
from tests.gatewayd.gateway import CHAT, Gateway, running, until

TEXTS = ["one", "another text", "a third"]


def vector_of(prompt: Any) -> Any:
    """Made up; the same for the same prompt."""
    return np.random.default_rng(list(prompt)).normal(size=HIDDEN_SIZE).astype(np.float32)


def pools(pieces: int = 1, times: float = 1.0) -> Script:
    """Tells of each prompt, in some pieces, sums whose mean is ``vector_of``."""

    async def script(job: Job) -> None:
        prompt, sink = job.request.prompt, job.sinks[0]
        count = 1 if job.request.params.pooling == "last" else len(prompt)
        sink.admitted(0, 0.001)
        for at in range(pieces):
            some = count - (pieces - 1) if at == pieces - 1 else 1
            sink.pooled(some, (some * times * vector_of(prompt)).astype("<f4").tobytes())
            await asyncio.sleep(0)
        sink.tokens([7], None)
        sink.finished("length", None)

    return script


def unit(vector: Any) -> Any:
    return vector / np.linalg.norm(vector)


async def post(gateway: Gateway, path: str, **body: Any) -> tuple[int, Any]:
    answer = await gateway.http.post(path, json=body)
    return answer.status_code, answer.json()


async def test_the_sdk_reads_floats_and_base64(text: TextModel) -> None:
    async with running(text, FakeFleet(pools(pieces=3))) as gateway:
        create = gateway.openai.embeddings.create
        packed = await create(model="nano", input=TEXTS)
        plain = await create(model="nano", input=TEXTS, encoding_format="float", user="me")
    prompts = [job.request.prompt for job in gateway.fleet.jobs[:3]]
    assert prompts == [text.tokenizer.encode(one, add_special=True) for one in TEXTS]
    params = gateway.fleet.jobs[0].request.params
    assert (params.pooling, params.max_tokens) == ("mean", 1)
    for found in (packed, plain):
        assert found.object == "list"
        assert found.model == "nano"
        assert found.usage.prompt_tokens == found.usage.total_tokens == sum(map(len, prompts))
        assert [one.index for one in found.data] == [0, 1, 2]
        assert {one.object for one in found.data} == {"embedding"}
        for one, prompt in zip(found.data, prompts, strict=True):
            np.testing.assert_allclose(one.embedding, unit(vector_of(prompt)), atol=1e-6)


async def test_base64_is_float32_little_endian(text: TextModel) -> None:
    async with running(text, FakeFleet(pools())) as gateway:
        _, found = await post(
            gateway, "/v1/embeddings", model="nano", input="hi", encoding_format="base64"
        )
    numbers = np.frombuffer(base64.b64decode(found["data"][0]["embedding"]), "<f4")
    prompt = gateway.fleet.jobs[0].request.prompt
    np.testing.assert_allclose(numbers, unit(vector_of(prompt)), atol=1e-6)


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ([5, 6, 7], [[5, 6, 7]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
    ],
)
async def test_ids_are_taken_as_they_are(
    text: TextModel, given: Any, prompts: list[list[int]]
) -> None:
    async with running(text, FakeFleet(pools())) as gateway:
        found = await gateway.openai.embeddings.create(model="nano", input=given)
    assert [job.request.prompt for job in gateway.fleet.jobs] == prompts
    assert len(found.data) == len(prompts)


async def test_dimensions_are_kept_before_the_length_is_made_one(text: TextModel) -> None:
    async with running(text, FakeFleet(pools())) as gateway:
        create = gateway.openai.embeddings.create
        cut = (await create(model="nano", input=[5, 6], dimensions=3)).data[0].embedding
        raw = await create(
            model="nano", input=[5, 6], dimensions=3, extra_body={"normalize": False}
        )
    expected = vector_of([5, 6])[:3]
    np.testing.assert_allclose(cut, unit(expected), atol=1e-6)
    np.testing.assert_allclose(raw.data[0].embedding, expected, atol=1e-6)


async def test_the_last_token_is_asked_for(text: TextModel) -> None:
    async with running(text, FakeFleet(pools())) as gateway:
        status, _ = await post(
            gateway,
            "/v1/embeddings",
            model="nano",
            input=[5, 6, 7],
            pooling="last",
            cache_salt="mine",
            priority="batch",
        )
    request = gateway.fleet.jobs[0].request
    assert (status, request.params.pooling, request.priority) == (200, "last", 2)
    assert request.salt


async def test_texts_are_cut_if_the_request_says_so(text: TextModel) -> None:
    long = "word " * 3000
    whole = text.tokenizer.encode(long, add_special=True)
    async with running(text, FakeFleet(pools())) as gateway:
        status, refused = await post(gateway, "/v1/embeddings", model="nano", input=["a", long])
        for more in (
            {"truncate_prompt_tokens": -1},
            {"truncate_prompt_tokens": 9},
            {"truncate_prompt_tokens": 9, "truncation_side": "left"},
        ):
            body = {"model": "nano", "input": long, **more}
            assert (await post(gateway, "/v1/embeddings", **body))[0] == 200
    assert (status, refused["error"]["param"]) == (400, "input[1]")
    assert refused["error"]["code"] == "context_length_exceeded"
    assert str(CONTEXT - 1) in refused["error"]["message"]
    prompts = [job.request.prompt for job in gateway.fleet.jobs]
    assert prompts == [whole[: CONTEXT - 1], whole[:9], whole[-9:]]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"input": ""}, "input"),
    ({"input": []}, "input"),
    ({"input": ["a", ""]}, "input[1]"),
    ({"input": [[5], []]}, "input[1]"),
    ({"input": [4096]}, "input"),
    ({"input": [[5], [6, 4096]]}, "input[1]"),
    ({"input": {"text": "a"}}, "input"),
    ({"input": ["a"] * 2049}, "input"),
    ({"input": "a", "dimensions": 0}, "dimensions"),
    ({"input": "a", "dimensions": HIDDEN_SIZE + 1}, "dimensions"),
    ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
    ({"input": "a", "pooling": "max"}, "pooling"),
    ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ({"input": "a", "truncate_prompt_tokens": CONTEXT}, "truncate_prompt_tokens"),
    ({"input": "a" * 1_100_000, "truncate_prompt_tokens": 4}, "input"),
    ({"input": "a" * 1_100_000}, "input"),
    ({"input": "a", "messages": []}, "messages"),
    ({}, "input"),
]


async def test_what_is_wrong_is_named(text: TextModel) -> None:
    async with running(text, FakeFleet(pools())) as gateway:
        for body, param in WRONG:
            status, answer = await post(gateway, "/v1/embeddings", model="nano", **body)
            assert (status, answer["error"]["param"]) == (400, param), (body, answer)
    assert gateway.fleet.jobs == []


async def test_more_than_can_ever_wait_is_refused_for_good(text: TextModel) -> None:
    async with running(text, FakeFleet(pools())) as gateway:
        many = await post(gateway, "/v1/embeddings", model="nano", input=["a"] * 11)
        long = await post(gateway, "/v1/embeddings", model="nano", input=[[5] * 600, [6] * 600])
    for status, answer in (many, long):
        assert (status, answer["error"]["param"]) == (400, "input")
        assert "in parts" in answer["error"]["message"]
    assert gateway.fleet.jobs == []


@pytest.mark.parametrize("bad", [np.nan, np.inf])
async def test_numbers_that_are_none_are_an_error(text: TextModel, bad: float) -> None:
    async with running(text, FakeFleet(pools(times=bad))) as gateway:
        status, answer = await post(gateway, "/v1/embeddings", model="nano", input="hi")
    assert (status, answer["error"]["code"]) == (500, "numerical_error")


async def test_one_that_fails_fails_all_and_stops_the_others(text: TextModel) -> None:
    async def script(job: Job) -> None:
        await (fails(NumericalError("no")) if job.request.prompt == [6] else hangs)(job)

    async with running(text, FakeFleet(script)) as gateway:
        with pytest.raises(openai.InternalServerError, match="no"):
            await gateway.openai.embeddings.create(model="nano", input=[[5], [6], [7]])
        await until(lambda: all(job.gone.is_set() for job in gateway.fleet.jobs))


async def test_a_client_that_leaves_frees_all(text: TextModel) -> None:
    async with running(text, FakeFleet(hangs)) as gateway:
        asking = asyncio.create_task(gateway.openai.embeddings.create(model="nano", input=TEXTS))
        await until(lambda: len(gateway.fleet.jobs) == 3)
        asking.cancel()
        await until(lambda: all(job.gone.is_set() for job in gateway.fleet.jobs))
        events = await gateway.until_finished()
    assert [event.outcome for event in events] == ["abort"]


async def test_an_engine_that_is_lost_is_forgotten(text: TextModel) -> None:
    async def script(job: Job) -> None:
        sink = job.sinks[0]
        sink.pooled(1, np.ones(HIDDEN_SIZE, "<f4").tobytes())
        sink.restarted()
        await pools()(job)

    async with running(text, FakeFleet(script)) as gateway:
        found = await gateway.openai.embeddings.create(model="nano", input=[5, 6])
    np.testing.assert_allclose(found.data[0].embedding, unit(vector_of([5, 6])), atol=1e-6)
    assert gateway.fleet.jobs[0].request.retry_started


def cosine(one: str, other: str, text: TextModel) -> float:
    both = [vector_of(text.tokenizer.encode(t, add_special=True)) for t in (one, other)]
    return float(unit(both[0]) @ unit(both[1]))


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
async def test_documents_are_ordered_by_the_angle(text: TextModel, path: str) -> None:
    documents = [TEXTS[0], {"text": TEXTS[1]}, TEXTS[2], TEXTS[0]]
    body = {"model": "nano", "query": "what", "documents": documents}
    async with running(text, FakeFleet(pools())) as gateway:
        status, found = await post(gateway, path, **body)
        _, best = await post(gateway, path, **body, top_n=2, return_documents=False)
    assert status == 200
    assert found["model"] == "nano"
    assert found["id"]
    total = sum(len(job.request.prompt) for job in gateway.fleet.jobs[:5])
    assert found["usage"] == {"prompt_tokens": total, "total_tokens": total}
    results = found["results"]
    scores = [result["relevance_score"] for result in results]
    assert scores == sorted(scores, reverse=True)
    assert [result["index"] for result in results].index(0) < [
        result["index"] for result in results
    ].index(3), "of equals the first comes first"
    texts = [*TEXTS, TEXTS[0]]
    for result in results:
        shown = texts[result["index"]]
        assert result["document"] == {"text": shown}
        assert result["relevance_score"] == pytest.approx(cosine("what", shown, text), abs=1e-6)
    assert best["results"] == [
        {key: result[key] for key in ("index", "relevance_score")} for result in results[:2]
    ]


async def test_long_documents_can_be_cut(text: TextModel) -> None:
    async with running(text, FakeFleet(pools())) as gateway:
        status, _ = await post(
            gateway, "/rerank", query="a b c d", documents=["a b c d"], max_tokens_per_doc=2
        )
    query, document = [job.request.prompt for job in gateway.fleet.jobs]
    assert (status, document) == (200, query[:2])


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
@pytest.mark.parametrize(
    ("body", "pairs"),
    [
        ({"text_1": "what", "text_2": "one"}, [("what", "one")]),
        ({"text_1": "what", "text_2": TEXTS}, [("what", one) for one in TEXTS]),
        ({"text_1": TEXTS, "text_2": TEXTS[::-1]}, list(zip(TEXTS, TEXTS[::-1], strict=True))),
        (
            {"queries": "what", "documents": ["one", {"text": "x"}]},
            [("what", "one"), ("what", "x")],
        ),
    ],
)
async def test_pairs_are_scored_by_the_angle(
    text: TextModel, path: str, body: dict[str, Any], pairs: list[tuple[str, str]]
) -> None:
    async with running(text, FakeFleet(pools())) as gateway:
        status, found = await post(gateway, path, model="nano", **body)
    assert (status, found["object"], found["model"]) == (200, "list", "nano")
    assert found["usage"]["prompt_tokens"] == found["usage"]["total_tokens"]
    assert found["created"] > 0
    expected = [cosine(one, other, text) for one, other in pairs]
    for at, (entry, score) in enumerate(zip(found["data"], expected, strict=True)):
        assert entry == {"index": at, "object": "score", "score": pytest.approx(score, abs=1e-6)}


INCOMPARABLE: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/score", {"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}, "text_1"),
    ("/v1/score", {"text_1": ["a", "b"], "text_2": "c"}, "text_1"),
    ("/v1/score", {"text_1": "a"}, "text_2"),
    ("/v1/score", {"text_1": "a", "queries": "b", "text_2": "c"}, "queries"),
    ("/v1/score", {"text_1": "a", "text_2": []}, "text_2"),
    ("/v1/score", {"text_1": ["a"] * 1025, "text_2": ["a"] * 1025}, "text_2"),
    ("/v1/rerank", {"query": "a", "documents": []}, "documents"),
    ("/v1/rerank", {"query": "", "documents": ["a"]}, "query"),
    ("/v1/rerank", {"query": "a", "documents": ["a", {"txt": "b"}]}, "documents[1].text"),
    ("/v1/rerank", {"query": "a", "documents": ["a", ""]}, "documents[1]"),
    ("/v1/rerank", {"query": "a", "documents": ["a"], "top_n": -1}, "top_n"),
    ("/v1/rerank", {"documents": ["a"]}, "query"),
]


async def test_what_cannot_be_compared_is_named(text: TextModel) -> None:
    async with running(text, FakeFleet(pools())) as gateway:
        for path, body, param in INCOMPARABLE:
            status, answer = await post(gateway, path, **body)
            assert (status, answer["error"]["param"]) == (400, param), (body, answer)
    assert gateway.fleet.jobs == []


async def test_a_chat_comes_between_very_many_prompts(text: TextModel) -> None:
    prompts = [[at % 4000 + 5] * 100 for at in range(400)]
    line = asyncio.Lock()  # first come, first served
    answered: list[int] = []

    async def one_by_one(job: Job) -> None:
        async with line:
            answered.append(len(job.request.prompt))
            await asyncio.sleep(0)
            await (pools() if job.request.params.pooling else says([300, 301]))(job)

    fleet = FakeFleet(one_by_one)
    fleet.room = QueueCapacity(1000, 1000, 10**6, 10**6, 0.0)
    wave = 4 * model_info().max_batch_tokens // len(prompts[0])
    async with running(text, fleet) as gateway:
        asking = asyncio.create_task(gateway.openai.embeddings.create(model="nano", input=prompts))
        await until(lambda: answered)
        began = len(answered)
        status, _ = await post(gateway, "/v1/chat/completions", **CHAT, max_tokens=2)
        before = [size for size in answered if size == 100]
        found = await asking
    assert status == 200
    assert len(before) <= began + 2 * wave < len(prompts)
    assert len(answered) == len(prompts) + 1
    assert found.usage.prompt_tokens == 100 * len(prompts)
    for one, prompt in zip(found.data, prompts, strict=True):
        np.testing.assert_allclose(one.embedding, unit(vector_of(prompt)), atol=1e-6)


async def test_a_client_that_leaves_between_prompts_has_no_more_of_them(text: TextModel) -> None:
    prompts = [[5] * 2000] * 9

    async def some(job: Job) -> None:
        await (pools() if len(gateway.fleet.jobs) <= 4 else hangs)(job)

    fleet = FakeFleet(some)
    fleet.room = QueueCapacity(1000, 1000, 10**6, 10**6, 0.0)
    async with running(text, fleet) as gateway:
        asking = asyncio.create_task(gateway.openai.embeddings.create(model="nano", input=prompts))
        await until(lambda: len(fleet.jobs) == 8)
        asking.cancel()
        await until(lambda: all(job.gone.is_set() for job in fleet.jobs[4:]))
        await gateway.until_finished(2)
    assert len(fleet.jobs) == 8
