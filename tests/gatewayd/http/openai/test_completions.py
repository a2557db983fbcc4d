"""Completions: four prompt forms, echo, scoring."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gatewayd.http.services import RequestLimits
from gatewayd.text.text_model import TextModel
from gatewayd.text.tokenizer import Tokenizer
from tests.gatewayd.fake_fleet import FakeFleet, Job, says
from tests.gatewayd.gateway import COMPLETION, running


async def test_all_four_prompt_forms_reach_the_engine_as_ids(text: TextModel) -> None:
    one, two = text.tokenizer.encode("def f"), text.tokenizer.encode("class A")
    async with running(text, FakeFleet(says([100]))) as gateway:
        for prompt in ("def f", ["def f", "class A"], one, [one, two]):
            answer = await gateway.openai.completions.create(model="nano", prompt=prompt)
            assert answer.usage is not None
            assert answer.usage.prompt_tokens in (len(one), len(one) + len(two))
        sent = [list(job.request.prompt) for job in gateway.fleet.jobs]
        finished = await gateway.until_finished(4)
    assert sent == [one, one, two, one, one, two]
    assert len(finished) == 4
    assert all(job.request.params.max_tokens == 16 for job in gateway.fleet.jobs)


async def test_choices_of_several_prompts_are_numbered_through(text: TextModel) -> None:
    ids = text.tokenizer.encode("x y")
    async with running(text, FakeFleet(says(ids))) as gateway:
        answer = await gateway.openai.completions.create(
            model="nano", prompt=["a", "b"], n=2, echo=True
        )
        stream = await gateway.openai.completions.create(
            model="nano", prompt=["a", "b"], n=2, echo=True, stream=True
        )
        streamed = [""] * 4
        async for chunk in stream:
            for choice in chunk.choices:
                streamed[choice.index] += choice.text
    assert [choice.text for choice in answer.choices] == ["ax y", "ax y", "bx y", "bx y"]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert streamed == ["ax y", "ax y", "bx y", "bx y"]


async def test_a_stream_joins_to_the_whole_answer(text: TextModel) -> None:
    sample = "caf\u00e9 \U0001f469"
    async with running(text, FakeFleet(says(text.tokenizer.encode(sample)))) as gateway:
        stream = await gateway.openai.completions.create(
            model="nano", prompt="x", stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == sample
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None


async def test_a_prompt_can_be_scored_without_generating(text: TextModel) -> None:
    prompt = "def f(x):"
    ids = text.tokenizer.encode(prompt)
    body = {**COMPLETION, "prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 0}
    async with running(text, FakeFleet(says([100, 101]))) as gateway:
        response = await gateway.http.post("/v1/completions", json=body)
        params = gateway.fleet.jobs[0].request.params
    answer = response.json()
    columns = answer["choices"][0]["logprobs"]
    assert answer["choices"][0]["text"] == prompt
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 0
    assert "".join(columns["tokens"]) == prompt
    assert columns["token_logprobs"] == [None] + [-0.5] * (len(ids) - 1)
    assert columns["top_logprobs"][0] is None
    assert [prompt[at:] for at in columns["text_offset"]] == [
        "".join(columns["tokens"][at:]) for at in range(len(ids))
    ]
    assert (params.max_tokens, params.prompt_logprobs) == (1, 1)


async def test_logprobs_of_echo_and_answer_are_one_text(text: TextModel) -> None:
    ids = text.tokenizer.encode(" world")
    body = {**COMPLETION, "prompt": "hello", "echo": True, "logprobs": 2}
    async with running(text, FakeFleet(says(ids))) as gateway:
        whole = (await gateway.http.post("/v1/completions", json=body)).json()["choices"][0]
        raw = await gateway.http.post("/v1/completions", json={**body, "stream": True})
    columns = whole["logprobs"]
    assert whole["text"] == "".join(columns["tokens"]) == "hello world"
    starts = [len("".join(columns["tokens"][:at])) for at in range(len(columns["tokens"]))]
    assert columns["text_offset"] == starts
    assert _columns(raw.text) == columns


@pytest.mark.parametrize("is_stream", [False, True])
async def test_no_alternatives_is_the_chosen_token_alone(text: TextModel, is_stream: bool) -> None:
    ids = text.tokenizer.encode("hello world")
    body = {**COMPLETION, "logprobs": 0, "stream": is_stream}
    async with running(text, FakeFleet(says(ids))) as gateway:
        response = await gateway.http.post("/v1/completions", json=body)
    columns = _columns(response.text) if is_stream else response.json()["choices"][0]["logprobs"]
    assert "".join(columns["tokens"]) == "hello world"
    assert columns["token_logprobs"] == [-0.5] * len(ids)
    assert columns["top_logprobs"] == [{}] * len(ids)


async def test_a_wake_up_before_the_prompt_is_scored_does_not_open_its_choice(
    text: TextModel,
) -> None:
    """A sibling's tokens and a ping both wake the stream while a prompt is being computed."""
    prompts, told = ["hello", "x y z"], asyncio.Event()

    async def script(job: Job) -> None:
        if list(job.request.prompt) == text.tokenizer.encode(prompts[1]):
            await told.wait()
        await says([100])(job)

    body = {**COMPLETION, "prompt": prompts, "echo": True, "logprobs": 1, "stream": True}
    limits = RequestLimits(ping_seconds=0.02)
    async with (
        running(text, FakeFleet(script), limits=limits) as gateway,
        gateway.http.stream("POST", "/v1/completions", json=body) as response,
    ):
        raw = ""
        async for part in response.aiter_text():
            raw += part
            if ": ping" in raw:
                told.set()
    for index, prompt in enumerate(prompts):
        columns = _columns(raw, index)
        assert columns["token_logprobs"] == [None] + [-0.5] * len(text.tokenizer.encode(prompt))


@pytest.mark.parametrize("is_stream", [False, True])
async def test_the_columns_of_a_prompt_are_made_once_for_its_choices(
    text: TextModel, is_stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    piece = Tokenizer.piece

    def noted(self: Tokenizer, token: int, *, opens: bool = False) -> bytes:
        asked.append(token)
        return piece(self, token, opens=opens)

    monkeypatch.setattr(Tokenizer, "piece", noted)
    body = {**COMPLETION, "prompt": [300, 301, 302], "echo": True, "logprobs": 0, "n": 5}
    async with running(text, FakeFleet(says([100]))) as gateway:
        response = await gateway.http.post("/v1/completions", json={**body, "stream": is_stream})
    columns = (
        [_columns(response.text, index) for index in range(5)]
        if is_stream
        else [choice["logprobs"] for choice in response.json()["choices"]]
    )
    assert all(column["token_logprobs"] == [None, -0.5, -0.5, -0.5] for column in columns)
    assert [asked.count(token) for token in (300, 301, 302, 100)] == [1, 1, 1, 5]


def _columns(raw: str, index: int = 0) -> dict[str, list[Any]]:
    """The log-probabilities of a stream's choice, all chunks together."""
    columns: dict[str, list[Any]] = {}
    for event in raw.split("\n\n"):
        if event.startswith("data: {"):
            choice = json.loads(event.removeprefix("data: "))["choices"][0]
            if choice["index"] == index:
                for name, values in choice["logprobs"].items():
                    columns.setdefault(name, []).extend(values)
    return columns


async def test_half_a_character_is_named_by_its_bytes(text: TextModel) -> None:
    ids = text.tokenizer.encode("\U0001f469")
    body = {**COMPLETION, "logprobs": 1}
    async with running(text, FakeFleet(says(ids))) as gateway:
        answer = (await gateway.http.post("/v1/completions", json=body)).json()
    tokens = answer["choices"][0]["logprobs"]["tokens"]
    assert answer["choices"][0]["text"] == "\U0001f469"
    assert any(token.startswith("bytes:\\xf0") for token in tokens)


async def test_the_prompt_never_leaks_into_the_answer(text: TextModel) -> None:
    half = text.tokenizer.encode("\U0001f469")[:-1]
    async with running(text, FakeFleet(says(text.tokenizer.encode("ok")))) as gateway:
        answer = await gateway.openai.completions.create(model="nano", prompt=half)
    assert answer.choices[0].text == "ok"


@pytest.mark.parametrize(
    ("change", "status", "code", "param"),
    [
        ({"max_tokens": 2043}, 200, None, None),
        ({"max_tokens": 2044}, 400, "context_length_exceeded", "max_tokens"),
        ({"max_tokens": 2**31}, 400, "context_length_exceeded", "max_tokens"),
        ({"max_tokens": 2**63}, 400, "invalid_value", "max_tokens"),
        ({"prompt": [7] * 2047}, 200, None, None),
        ({"prompt": [7] * 2048}, 400, "context_length_exceeded", "prompt"),
        ({"prompt": [7] * 2047, "max_tokens": 1}, 200, None, None),
        ({"prompt": [7] * 2047, "max_tokens": 2}, 400, "context_length_exceeded", "max_tokens"),
        ({"prompt": "x" * 100_000}, 400, "context_length_exceeded", "prompt"),
        ({"prompt": [4095]}, 200, None, None),
        ({"prompt": [4096]}, 400, "invalid_value", "prompt"),
        ({"prompt": ""}, 400, "invalid_value", "prompt"),
        ({"prompt": [[7], []]}, 400, "invalid_value", None),
        ({"max_tokens": 0}, 400, "invalid_value", "max_tokens"),
        ({"max_tokens": 5, "min_tokens": 5}, 200, None, None),
        ({"max_tokens": 5, "min_tokens": 6}, 400, "invalid_value", "min_tokens"),
        ({"best_of": 2}, 400, "invalid_value", "best_of"),
        ({"best_of": 2, "n": 2}, 200, None, None),
        ({"best_of": 1, "n": 2}, 400, "invalid_value", "best_of"),
        ({"top_p": 1e-9}, 200, None, None),
        ({"top_p": 0}, 400, "invalid_value", "top_p"),
        ({"top_p": 1.01}, 400, "invalid_value", "top_p"),
        ({"min_p": 1.0}, 200, None, None),
        ({"min_p": 1.01}, 400, "invalid_value", "min_p"),
        ({"min_p": -0.01}, 400, "invalid_value", "min_p"),
        ({"temperature": 0}, 200, None, None),
        ({"temperature": -0.01}, 400, "invalid_value", "temperature"),
        ({"temperature": 2.01}, 400, "invalid_value", "temperature"),
        ({"top_k": -1}, 200, None, None),
        ({"top_k": -2}, 400, "invalid_value", "top_k"),
        ({"suffix": "x"}, 400, "unsupported_parameter", "suffix"),
        ({"prompt": ["x"] * 100, "n": 2}, 400, "invalid_value", "n"),
        ({"stop_token_ids": [4096]}, 400, "invalid_value", "stop_token_ids"),
        ({"logit_bias": {"4096": 1}}, 400, "invalid_value", "logit_bias"),
        ({"logit_bias": {"-1": 1}}, 400, "invalid_value", "logit_bias"),
        ({"stream_options": {}}, 400, "invalid_value", "stream_options"),
        ({"model": "other"}, 404, "model_not_found", "model"),
    ],
)
async def test_limits_hold_at_their_boundaries(
    text: TextModel, change: dict[str, Any], status: int, code: str | None, param: str | None
) -> None:
    body = {**COMPLETION, "prompt": [7] * 5, **change}
    async with running(text, FakeFleet(says([100])), limits=RequestLimits()) as gateway:
        response = await gateway.http.post("/v1/completions", json=body)
        num_jobs = len(gateway.fleet.jobs)
    assert response.status_code == status, response.text
    if status != 200:
        error = response.json()["error"]
        assert error["code"] == code
        assert param is None or error["param"] == param
        assert set(error) == {"message", "type", "param", "code"}
        assert num_jobs == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"top_p": 0},
            "top_p is 0; it must be greater than 0: for the most likely token alone set "
            "temperature to 0",
        ),
        (
            {"best_of": 1, "n": 2},
            "best_of is 1 and n is 2; best_of must be at least n: no candidates are "
            "generated to be discarded, so omit best_of",
        ),
    ],
)
async def test_a_refusal_names_the_limit_and_the_remedy(
    text: TextModel, change: dict[str, Any], message: str
) -> None:
    async with running(text, FakeFleet(says([100]))) as gateway:
        response = await gateway.http.post("/v1/completions", json={**COMPLETION, **change})
    assert response.status_code == 400
    assert response.json()["error"]["message"] == message


async def test_overflow_names_the_figures_and_the_remedy(text: TextModel) -> None:
    body = {**COMPLETION, "prompt": [7] * 5, "max_tokens": 3000}
    async with running(text, FakeFleet(says([100]))) as gateway:
        message = (await gateway.http.post("/v1/completions", json=body)).json()["error"]["message"]
    for figure in ("5 tokens", "3000", "3005", "2048", "at most 2043"):
        assert figure in message


async def test_streamed_log_probabilities_of_half_characters_are_all_told(text: TextModel) -> None:
    ids = text.tokenizer.encode("\U0001f469\U0001f680 x")
    async with running(text, FakeFleet(says(ids))) as gateway:
        whole = await gateway.openai.completions.create(model="nano", prompt="x", logprobs=1)
        stream = await gateway.openai.completions.create(
            model="nano", prompt="x", logprobs=1, stream=True
        )
        told: list[str] = []
        async for chunk in stream:
            for choice in chunk.choices:
                told += (choice.logprobs.tokens or []) if choice.logprobs else []
    assert whole.choices[0].logprobs is not None
    assert told == whole.choices[0].logprobs.tokens
    assert len(told) == len(ids)


@pytest.mark.parametrize("prompt", ["one two three four five six", list(range(300, 309))])
@pytest.mark.parametrize("limit", [1, 3, 200, -1])
async def test_a_longer_prompt_keeps_its_last_tokens(
    text: TextModel, prompt: Any, limit: int
) -> None:
    ids = text.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
    kept = ids if limit == -1 else ids[-limit:]
    body = {**COMPLETION, "prompt": prompt, "truncate_prompt_tokens": limit, "echo": True}
    async with running(text, FakeFleet(says([300]))) as gateway:
        answer = (await gateway.http.post("/v1/completions", json=body)).json()
        job = gateway.fleet.jobs[0]
    assert list(job.request.prompt) == kept
    assert answer["usage"]["prompt_tokens"] == len(kept)
    assert answer["choices"][0]["text"].startswith(text.tokenizer.decode(kept))


async def test_a_prompt_beyond_the_context_is_truncated_but_not_any(text: TextModel) -> None:
    long = "word " * 3000
    async with running(text, FakeFleet(says([300]))) as gateway:

        async def post(prompt: str, limit: int | None) -> tuple[int, str]:
            body = {**COMPLETION, "prompt": prompt, "truncate_prompt_tokens": limit}
            answer = await gateway.http.post("/v1/completions", json=body)
            return answer.status_code, answer.text

        assert gateway.fleet.model is not None
        most = gateway.fleet.model.max_model_len - 1
        assert (await post(long, 5))[0] == 200
        assert "the model's context is" in (await post(long, None))[1]
        assert "the model's context is" in (await post("word " * 400_000, 5))[1]
        for limit in (0, most + 1):
            status, told = await post("a", limit)
            assert (status, f"it must be from 1 to {most}, or -1" in told) == (400, True)
