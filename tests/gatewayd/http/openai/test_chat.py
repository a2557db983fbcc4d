"""Chat completions: through the OpenAI SDK and plain HTTP."""

from __future__ import annotations

import pytest

from gatewayd.text.text_model import TextModel
from gatewayd_hooks.scheduling import Priority
from tests.gatewayd.fake_fleet import FakeFleet, says
from tests.gatewayd.gateway import CHAT, running
from tests.gatewayd.http.sse_events import MESSAGES, events

SAMPLE = "na\u00efve \U0001f469\u200d\U0001f4bb \u4f60\u597d!"


async def test_an_answer_has_text_reason_and_usage(text: TextModel) -> None:
    ids = text.tokenizer.encode(SAMPLE)
    async with running(text, FakeFleet(says(ids, cached=4))) as gateway:
        answer = await gateway.openai.chat.completions.create(model="nano", messages=MESSAGES)
        prompt = gateway.fleet.jobs[0].request.prompt
        finished = await gateway.until_finished()
    assert answer.choices[0].message.content == SAMPLE
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(prompt)
    assert answer.usage.completion_tokens == len(ids)
    assert answer.usage.total_tokens == len(prompt) + len(ids)
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 4
    assert finished[0].outcome == "stop"
    assert finished[0].cached_tokens == 4
    assert finished[0].completion_tokens == len(ids)
    assert len(gateway.admitted) == len(gateway.finished) == 1


@pytest.mark.parametrize("step", [1, 3])
async def test_a_stream_joins_to_the_whole_answer(text: TextModel, step: int) -> None:
    ids = text.tokenizer.encode(SAMPLE)
    async with running(text, FakeFleet(says(ids, step=step))) as gateway:
        stream = await gateway.openai.chat.completions.create(
            model="nano",
            messages=MESSAGES,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == SAMPLE
    assert not any("\ufffd" in (delta.content or "") for delta in deltas)
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert reasons == [None] * (len(reasons) - 1) + ["stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(ids)
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert {chunk.id for chunk in chunks} == {chunks[0].id}


async def test_continuous_usage_counts_up(text: TextModel) -> None:
    ids = text.tokenizer.encode("one two three four five")
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with running(text, FakeFleet(says(ids, delay=0.01))) as gateway:
        response = await gateway.http.post(
            "/v1/chat/completions", json={**CHAT, "stream": True, "stream_options": options}
        )
    counts = [event["usage"]["completion_tokens"] for event in events(response.text)]
    assert counts == sorted(counts)
    assert counts[-1] == len(ids)
    assert len(set(counts)) > 2


async def test_n_choices_share_one_prompt(text: TextModel) -> None:
    ids = text.tokenizer.encode("hello")
    async with running(text, FakeFleet(says(ids))) as gateway:
        answer = await gateway.openai.chat.completions.create(model="nano", messages=MESSAGES, n=3)
        stream = await gateway.openai.chat.completions.create(
            model="nano", messages=MESSAGES, n=3, stream=True
        )
        texts = ["", "", ""]
        async for chunk in stream:
            texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
        jobs = gateway.fleet.jobs
    assert [choice.message.content for choice in answer.choices] == ["hello"] * 3
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert texts == ["hello"] * 3
    assert [len(job.sinks) for job in jobs] == [3, 3]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3 * len(ids)
    assert answer.usage.prompt_tokens == len(jobs[0].request.prompt)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_logprobs_have_one_entry_for_each_token(text: TextModel, is_stream: bool) -> None:
    ids = text.tokenizer.encode("hi \U0001f469")
    body = {**CHAT, "logprobs": True, "top_logprobs": 2, "stream": is_stream}
    async with running(text, FakeFleet(says(ids))) as gateway:
        response = await gateway.http.post("/v1/chat/completions", json=body)
    if is_stream:
        content = [
            entry
            for event in events(response.text)
            for entry in (event["choices"][0]["logprobs"] or {"content": []})["content"]
        ]
    else:
        content = response.json()["choices"][0]["logprobs"]["content"]
    assert [entry["bytes"] for entry in content] == [list(text.tokenizer.piece(i)) for i in ids]
    assert bytes(b for entry in content for b in entry["bytes"]).decode() == "hi \U0001f469"
    assert all(entry["logprob"] == -0.5 for entry in content)
    assert all(len(entry["top_logprobs"]) == 2 for entry in content)
    assert content[0]["top_logprobs"][1]["logprob"] == -1.5


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_stop_string_ends_the_answer_and_its_sequence(
    text: TextModel, is_stream: bool
) -> None:
    ids = text.tokenizer.encode("one two three four")
    body = {**CHAT, "stop": [" thr", "zzz"], "logprobs": True, "stream": is_stream}
    async with running(text, FakeFleet(says(ids, delay=0.002))) as gateway:
        response = await gateway.http.post("/v1/chat/completions", json=body)
        assert gateway.fleet.jobs[0].cancelled == {0}
        finished = await gateway.until_finished()
    choices = (
        [event["choices"][0] for event in events(response.text)]
        if is_stream
        else response.json()["choices"]
    )
    shown = "".join(
        choice["delta"].get("content", "") if is_stream else choice["message"]["content"]
        for choice in choices
    )
    scored = "".join(
        entry["token"]
        for choice in choices
        for entry in (choice["logprobs"] or {"content": []})["content"]
    )
    assert shown == scored == "one two"
    assert choices[-1]["finish_reason"] == "stop"
    assert choices[-1]["stop_reason"] == " thr"
    assert finished[0].outcome == "stop"


async def test_a_stop_token_of_the_request_is_named(text: TextModel) -> None:
    async with running(text, FakeFleet(says([100], stop_token=77))) as gateway:
        own = await gateway.http.post("/v1/chat/completions", json={**CHAT, "stop_token_ids": [77]})
        other = await gateway.http.post("/v1/chat/completions", json=CHAT)
    assert own.json()["choices"][0]["stop_reason"] == 77
    assert other.json()["choices"][0]["stop_reason"] is None


@pytest.mark.parametrize("stop", [None, ["zzz"]])
async def test_logprobs_before_a_stop_token_include_tokens_without_text(
    text: TextModel, stop: list[str] | None
) -> None:
    special = next(iter(text.tokenizer.special_texts.values()))
    ids = [*text.tokenizer.encode("one two"), special]
    body = {**CHAT, "stop_token_ids": [77], "stop": stop, "logprobs": True}
    async with running(text, FakeFleet(says(ids, stop_token=77))) as gateway:
        answer = (await gateway.http.post("/v1/chat/completions", json=body)).json()
    (choice,) = answer["choices"]
    assert (choice["message"]["content"], choice["stop_reason"]) == ("one two", 77)
    assert answer["usage"]["completion_tokens"] == len(ids)
    assert len(choice["logprobs"]["content"]) == len(ids)


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize(
    ("value", "code"), [(0, "invalid_value"), (2048, "context_length_exceeded")]
)
async def test_a_limit_that_does_not_fit_is_named_as_the_client_names_it(
    text: TextModel, field: str, value: int, code: str
) -> None:
    async with running(text, FakeFleet(says([100]))) as gateway:
        response = await gateway.http.post("/v1/chat/completions", json={**CHAT, field: value})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (field, code)
    assert f"{field} is {value}" in error["message"]


async def test_every_parameter_reaches_the_engine(text: TextModel) -> None:
    body = {
        **CHAT,
        "max_completion_tokens": 9,
        "max_tokens": 8,
        "min_tokens": 3,
        "temperature": 0,
        "top_k": -1,
        "top_p": 0.5,
        "min_p": 0.1,
        "frequency_penalty": -2,
        "presence_penalty": 2,
        "repetition_penalty": 1.5,
        "seed": -1,
        "ignore_eos": True,
        "logit_bias": {"7": -100, "8": 1.5},
        "stop_token_ids": [4095],
        "logprobs": True,
        "service_tier": "flex",
    }
    async with running(text, FakeFleet(says([100]))) as gateway:
        response = await gateway.http.post("/v1/chat/completions", json=body)
        request = gateway.fleet.jobs[0].request
    assert response.status_code == 200
    params = request.params
    assert (params.max_tokens, params.min_tokens, params.temperature) == (9, 3, 0.0)
    assert (params.top_k, params.top_p, params.min_p) == (0, 0.5, 0.1)
    assert (params.frequency_penalty, params.presence_penalty) == (-2.0, 2.0)
    assert (params.repetition_penalty, params.seed, params.ignore_eos) == (1.5, -1, True)
    assert params.logit_bias == [(7, -100.0), (8, 1.5)]
    assert params.stop_token_ids == [4095]
    assert params.logprobs == 0
    assert request.priority == Priority.BATCH
    assert request.retry_started


async def test_token_ids_are_returned_when_asked_for(text: TextModel) -> None:
    ids = text.tokenizer.encode("hello there")
    body = {**CHAT, "return_token_ids": True}
    async with running(text, FakeFleet(says(ids))) as gateway:
        whole = (await gateway.http.post("/v1/chat/completions", json=body)).json()
        streamed = await gateway.http.post("/v1/chat/completions", json={**body, "stream": True})
        prompt = list(gateway.fleet.jobs[0].request.prompt)
    assert whole["choices"][0]["token_ids"] == ids
    assert whole["prompt_token_ids"] == prompt
    found = events(streamed.text)
    assert found[0]["prompt_token_ids"] == prompt
    assert [i for event in found for i in event["choices"][0].get("token_ids", [])] == ids


async def test_developer_is_system_and_parts_are_joined(text: TextModel) -> None:
    turns = [
        [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "ab"}],
        [
            {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            },
        ],
    ]
    async with running(text, FakeFleet(says([100]))) as gateway:
        for messages in turns:
            await gateway.http.post("/v1/chat/completions", json={**CHAT, "messages": messages})
        one, other = (job.request.prompt for job in gateway.fleet.jobs)
    assert list(one) == list(other)
