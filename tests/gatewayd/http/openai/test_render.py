"""Dry runs: the rendered prompt, and the pages it would hold."""

from __future__ import annotations

from typing import Any

import pytest

from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import CONTEXT, FakeFleet, says
from tests.gatewayd.gateway import CHAT, COMPLETION, running

PAGE, POOL = 16, 1000


def pages_held(prompt: int, answers: list[int]) -> int:
    """Brute force: every place a token is written to, by who can see it."""
    held = {("prompt", at // PAGE) for at in range(prompt // PAGE * PAGE)}
    for choice, length in enumerate(answers):
        for at in range(prompt // PAGE * PAGE, prompt + length - 1):
            held.add((f"choice {choice}", at // PAGE))
    return len(held)


async def test_a_chat_is_shown_as_the_engine_would_get_it(text: TextModel) -> None:
    async with running(text, FakeFleet(says([100]))) as gateway:
        shown = (await gateway.http.post("/v1/chat/completions/render", json=CHAT)).json()
        assert gateway.fleet.jobs == []
        await gateway.http.post("/v1/chat/completions", json=CHAT)
        sent = list(gateway.fleet.jobs[0].request.prompt)
    (prompt,) = shown["prompts"]
    assert prompt["token_ids"] == sent
    assert prompt["count"] == len(sent)
    assert prompt["text"] == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert shown["max_tokens"] == CONTEXT - len(sent)
    assert shown["max_model_len"] == CONTEXT


@pytest.mark.parametrize("length", [1, 15, 16, 17, 32, 100])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("max_tokens", [1, 2, 16, 17])
async def test_blocks_are_those_of_a_brute_force_count(
    text: TextModel, length: int, n: int, max_tokens: int
) -> None:
    body = {**COMPLETION, "prompt": [100] * length, "n": n, "max_tokens": max_tokens}
    async with running(text, FakeFleet()) as gateway:
        shown = (await gateway.http.post("/v1/completions/render", json=body)).json()
    assert shown["blocks"] == {
        "size": PAGE,
        "prompt": -(-length // PAGE),
        "at_most": pages_held(length, [max_tokens] * n),
        "pool": POOL,
    }


async def test_each_prompt_of_several_is_shown(text: TextModel) -> None:
    body = {**COMPLETION, "prompt": ["hi", "you there"]}
    async with running(text, FakeFleet()) as gateway:
        shown = (await gateway.http.post("/v1/completions/render", json=body)).json()
    assert [one["text"] for one in shown["prompts"]] == ["hi", "you there"]


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"temperature": 3}, 400, "temperature"),
        ({"model": "x"}, 404, "model"),
        ({"max_tokens": 10**6}, 400, "max_tokens"),
        ({"messages": [{"role": "user", "content": "hello " * 9999}]}, 400, "messages"),
    ],
)
async def test_what_the_route_refuses_its_dry_run_refuses(
    text: TextModel, change: dict[str, Any], status: int, param: str
) -> None:
    async with running(text, FakeFleet()) as gateway:
        answer = await gateway.http.post("/v1/chat/completions/render", json={**CHAT, **change})
    assert answer.status_code == status
    assert answer.json()["error"]["param"] == param
