"""Decisions over a fake fleet: questions asked, results, refusals."""

from __future__ import annotations

import asyncio
from math import exp
from typing import Any

import openai
import pytest

from gatewayd.http.schema.decisions import MAX_LABELS, MAX_QUESTIONS
from gatewayd.text.text_model import TextModel
from gatewayd_engine.process.messages import TokenLogprobs
from tests.gatewayd.fake_fleet import CONTEXT, VOCAB_SIZE, FakeFleet, Job, hangs
from tests.gatewayd.gateway import Gateway, running, until

PREDICATE = {"type": "predicate", "instructions": "It is so."}
CHOICE = {
    "type": "choice",
    "instructions": "Which?",
    "name": "which",
    "choices": [{"value": "red"}, {"value": True}, {"value": "True", "description": "text"}],
}
SCORE = {"type": "score", "instructions": "How much?", "levels": [{"label": "a"}, {"label": "b"}]}


def told(token: int) -> float:
    """Made-up log-probabilities."""
    return -0.5 - (token * 37 % 101) / 10


async def tells(job: Job) -> None:
    """Of the likeliest tokens, and of one that is forced."""
    params, sink = job.request.params, job.sinks[0]
    best = sorted(range(VOCAB_SIZE), key=told, reverse=True)
    token = params.logit_bias[0][0] if params.logit_bias else best[0]
    top = best[: params.logprobs or 0]
    entry = TokenLogprobs(0, token, told(token), 1, top, [told(one) for one in top])
    sink.admitted(3, 0.001)
    sink.tokens([token], [entry])
    sink.finished("length", None)


async def ask(gateway: Gateway, **body: Any) -> tuple[int, Any]:
    answer = await gateway.http.post("/v1/decisions", json={"model": "nano", **body})
    return answer.status_code, answer.json()


def expected(text: TextModel, labels: list[str]) -> list[float]:
    weights = [exp(sum(map(told, text.tokenizer.encode(label)))) for label in labels]
    return [weight / sum(weights) for weight in weights]


def roots_of(gateway: Gateway, text: TextModel) -> list[str]:
    """The prompts that were asked about, without tokens of labels."""
    shown = [text.tokenizer.decode(job.request.prompt) for job in gateway.fleet.jobs]
    return list(dict.fromkeys(one for one in shown if one.endswith("assistant\n")))


async def test_the_sdk_reads_probabilities_of_every_kind(text: TextModel) -> None:
    async with running(text, FakeFleet(tells)) as gateway:
        found = await gateway.openai.decisions.create(
            model="nano",
            input="A text.",
            questions=[PREDICATE, CHOICE, SCORE],  # type: ignore[list-item]
        )
    predicate, choice, score = found.answers
    assert predicate.type == "predicate"
    assert predicate.name is None
    assert predicate.probability == pytest.approx(expected(text, ["yes", "no"])[0])
    assert choice.type == "choice"
    assert choice.name == "which"
    letters = expected(text, ["A", "B", "C"])
    assert [one.probability for one in choice.probabilities] == pytest.approx(letters)
    assert [one.value for one in choice.probabilities] == ["red", True, "True"]
    assert choice.confidence == pytest.approx(max(letters))
    assert choice.choice == ["red", True, "True"][letters.index(max(letters))]
    assert score.type == "score"
    levels = expected(text, ["0", "1"])
    assert score.score == pytest.approx(levels[1])
    assert [(one.label, one.value) for one in score.probabilities] == [("a", 0), ("b", 1)]
    shown = roots_of(gateway, text)
    total = sum(len(text.tokenizer.encode(one, trusted=True)) for one in shown)
    assert found.usage.input_tokens == found.usage.total_tokens == total
    assert found.usage.input_tokens_details.cached_tokens == 3 * 3
    assert found.usage.output_tokens == 0
    assert len(shown) == 3
    assert all(one.startswith("<|im_start|>user\nA text.\n\nQuestion: ") for one in shown)
    assert 'A. "red"\nB. true\nC. "True": text\n' in shown[1]
    assert "0. a\n1. b\n" in shown[2]
    assert all(job.request.params.max_tokens == 1 for job in gateway.fleet.jobs)


async def test_messages_calls_and_json_are_shown_to_the_model(text: TextModel) -> None:
    given = [
        {"role": "system", "content": "Judge."},
        {"role": "user", "content": [{"type": "input_json", "data": {"a": [1, "é"]}}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"x": 1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "found"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "g", "input": "raw"},
        {
            "type": "custom_tool_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "<|im_end|>"}],
        },
    ]
    async with running(text, FakeFleet(tells)) as gateway:
        status, answer = await ask(gateway, input=given, questions=[PREDICATE])
    assert status == 200, answer
    prompt = gateway.fleet.jobs[0].request.prompt
    shown = text.tokenizer.decode(prompt)
    places = [
        shown.index(one)
        for one in ("Judge.", '{"a":[1,"é"]}', '"x": 1', "found", '"input": "raw"', "Question: ")
    ]
    assert places == sorted(places)
    end = text.tokenizer.special_texts["<|im_end|>"]
    assert list(prompt).count(end) == shown.count("<|im_end|>") - 1, "one of them is text"


NESTED: Any = {}
for _ in range(40):
    NESTED = {"a": NESTED}

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"input": ""}, "input"),
    ({"input": []}, "input"),
    ({"questions": []}, "questions"),
    ({"questions": [PREDICATE] * (MAX_QUESTIONS + 1)}, "questions"),
    ({"questions": [{**PREDICATE, "type": "guess"}]}, "questions[0]"),
    ({"questions": ["Is it?"]}, "questions[0]"),
    ({"questions": [PREDICATE, {**PREDICATE, "instructions": " "}]}, "questions[1].instructions"),
    ({"questions": [{**CHOICE, "choices": [{"value": "a"}]}]}, "questions[0].choices"),
    (
        {"questions": [{**CHOICE, "choices": [{"value": "a"}] * 2}]},
        "questions[0].choices[1].value",
    ),
    (
        {"questions": [{**SCORE, "levels": [{"label": "a"}] * (MAX_LABELS + 1)}]},
        "questions[0].levels",
    ),
    ({"questions": [{**SCORE, "levels": [{"label": "a"}] * MAX_LABELS}] * 33}, "questions"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:x"}]}]},
        "input[0].content[0]",
    ),
    (
        {"input": [{"role": "user", "content": [{"type": "input_json", "data": NESTED}]}]},
        "input[0].content[0].data",
    ),
    (
        {"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]},
        "input[0].call_id",
    ),
    ({"input": "word " * 3 * CONTEXT}, "input"),
    ({"input": "word " * CONTEXT}, "input"),
]


async def test_what_is_wrong_is_named(text: TextModel) -> None:
    async with running(text, FakeFleet(tells)) as gateway:
        for body, param in WRONG:
            status, answer = await ask(gateway, **{"input": "a", "questions": [PREDICATE], **body})
            assert (status, answer["error"]["param"]) == (400, param), (body, answer)
    assert gateway.fleet.jobs == []


async def test_a_client_that_leaves_frees_all(text: TextModel) -> None:
    async with running(text, FakeFleet(hangs)) as gateway:
        asking = asyncio.create_task(ask(gateway, input="a", questions=[PREDICATE, SCORE]))
        await until(lambda: len(gateway.fleet.jobs) >= 2)
        asking.cancel()
        await until(lambda: all(job.gone.is_set() for job in gateway.fleet.jobs))


async def test_a_long_request_leaves_room_in_the_queue(text: TextModel) -> None:
    most = 0

    async def script(job: Job) -> None:
        nonlocal most
        await asyncio.sleep(0.005)
        most = max(most, sum(not one.task.done() for one in gateway.fleet.jobs if one.task))
        await tells(job)

    async with running(text, FakeFleet(script)) as gateway:
        status, answer = await ask(gateway, input="a", questions=[PREDICATE] * 30)
    assert (status, len(answer["answers"])) == (200, 30)
    assert most <= gateway.fleet.room.limit_requests


async def test_logits_that_are_no_numbers_are_an_error(text: TextModel) -> None:
    async def script(job: Job) -> None:
        sink, token = job.sinks[0], (job.request.params.logit_bias or [(5, 0.0)])[0][0]
        sink.tokens([token], [TokenLogprobs(0, token, float("nan"), 1, [], [])])
        sink.finished("length", None)

    async with running(text, FakeFleet(script)) as gateway:
        with pytest.raises(openai.InternalServerError, match="not finite"):
            await gateway.openai.decisions.create(model="nano", input="a", questions=[PREDICATE])  # type: ignore[list-item]
