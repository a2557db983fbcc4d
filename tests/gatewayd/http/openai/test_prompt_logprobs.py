"""Prompt log-probabilities: in vLLM's shape."""

from __future__ import annotations

from typing import Any

import pytest

from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import VOCAB_SIZE, FakeFleet, says
from tests.gatewayd.gateway import CHAT, COMPLETION, running


def expected(text: TextModel, ids: list[int], wanted: int) -> list[Any]:
    """What the fake engine makes up, as vLLM would write it."""
    told: list[Any] = [None]
    for token in ids[1:]:
        ranked = [((token + at) % VOCAB_SIZE, -0.5 - at, at + 1) for at in range(max(1, wanted))]
        told.append(
            {
                str(one): {
                    "logprob": logprob,
                    "rank": rank,
                    "decoded_token": text.tokenizer.piece(one).decode(errors="replace"),
                }
                for one, logprob, rank in ranked
            }
        )
    return told


@pytest.mark.parametrize("wanted", [0, 1, 3])
async def test_a_chat_tells_them_beside_its_choices(text: TextModel, wanted: int) -> None:
    body = {**CHAT, "prompt_logprobs": wanted, "n": 2}
    async with running(text, FakeFleet(says([100]))) as gateway:
        answer = (await gateway.http.post("/v1/chat/completions", json=body)).json()
        prompt = list(gateway.fleet.jobs[0].request.prompt)
    assert answer["prompt_logprobs"] == expected(text, prompt, wanted)
    assert [choice["message"]["content"] for choice in answer["choices"]] == [
        text.tokenizer.decode([100])
    ] * 2


async def test_a_completion_tells_each_choice_those_of_its_prompt(text: TextModel) -> None:
    prompts = [[100, 200, 300], [400, 500]]
    body = {**COMPLETION, "prompt": prompts, "prompt_logprobs": 2, "n": 2}
    async with running(text, FakeFleet(says([100]))) as gateway:
        answer = (await gateway.http.post("/v1/completions", json=body)).json()
    told = [choice["prompt_logprobs"] for choice in answer["choices"]]
    first, second = (expected(text, prompt, 2) for prompt in prompts)
    assert told == [first, first, second, second]


async def test_a_prompt_can_be_scored_alone(text: TextModel) -> None:
    body = {**COMPLETION, "prompt": [100, 200], "prompt_logprobs": 1, "max_tokens": 0}
    async with running(text, FakeFleet(says([100]))) as gateway:
        answer = (await gateway.http.post("/v1/completions", json=body)).json()
    assert answer["choices"][0]["text"] == ""
    assert answer["choices"][0]["prompt_logprobs"] == expected(text, [100, 200], 1)


@pytest.mark.parametrize("wanted", [0, 2])
async def test_a_large_prompt_is_told_whole(text: TextModel, wanted: int) -> None:
    ids = [100 + at % 3000 for at in range(1500)]
    body = {**COMPLETION, "prompt": ids, "prompt_logprobs": wanted, "max_tokens": 1}
    async with running(text, FakeFleet(says([100]))) as gateway:
        answer = (await gateway.http.post("/v1/completions", json=body)).json()
    assert answer["choices"][0]["prompt_logprobs"] == expected(text, ids, wanted)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/chat/completions", {**CHAT, "stream": True}, "needs stream to be false"),
        ("/v1/completions", {**COMPLETION, "stream": True}, "needs stream to be false"),
        ("/v1/completions", {**COMPLETION, "echo": True}, "needs echo to be false"),
        ("/v1/completions", {**COMPLETION, "prompt_logprobs": 21}, "the maximum is 20"),
    ],
)
async def test_what_cannot_be_told_is_refused(
    text: TextModel, path: str, body: dict[str, Any], message: str
) -> None:
    async with running(text, FakeFleet()) as gateway:
        answer = await gateway.http.post(path, json={"prompt_logprobs": 1, **body})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt_logprobs"
    assert message in answer.json()["error"]["message"]


async def test_who_does_not_ask_is_not_told(text: TextModel) -> None:
    async with running(text, FakeFleet(says([100]))) as gateway:
        chat = (await gateway.http.post("/v1/chat/completions", json=CHAT)).json()
        plain = (await gateway.http.post("/v1/completions", json=COMPLETION)).json()
    assert "prompt_logprobs" not in chat
    assert "prompt_logprobs" not in plain["choices"][0]
