"""Continued final message: answers go on where the last message ends."""

from __future__ import annotations

from typing import Any

import pytest

from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import FakeFleet, says
from tests.gatewayd.gateway import CHAT, running

ASKED = {"role": "user", "content": "Describe it as JSON."}
BEGUN = '{"name": "len",'
CONTINUED = {
    **CHAT,
    "messages": [ASKED, {"role": "assistant", "content": BEGUN}],
    "continue_final_message": True,
}


def conversation(last: str) -> str:
    return f"<|im_start|>user\nDescribe it as JSON.<|im_end|>\n<|im_start|>assistant\n{last}"


async def test_the_prompt_ends_with_the_last_message(text: TextModel) -> None:
    async with running(text, FakeFleet(says(text.tokenizer.encode(' "x"')))) as gateway:
        answer = await gateway.http.post("/v1/chat/completions", json=CONTINUED)
        prompt = list(gateway.fleet.jobs[0].request.prompt)
    assert prompt == text.tokenizer.encode(conversation(BEGUN), trusted=True)
    assert answer.json()["choices"][0]["message"]["content"] == ' "x"'


@pytest.mark.parametrize("logprobs", [False, True])
@pytest.mark.parametrize("stop", [None, ["never"]])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_echo_puts_it_before_each_choice(
    text: TextModel, stream: bool, stop: list[str] | None, logprobs: bool
) -> None:
    ids = text.tokenizer.encode(' "x", "y": 1}')
    body = {"echo": True, "continue_final_message": True}
    async with running(text, FakeFleet(says(ids))) as gateway:
        asked: dict[str, Any] = {
            "model": "nano",
            "messages": CONTINUED["messages"],
            "n": 2,
            "stop": stop,
            "logprobs": logprobs,
            "extra_body": body,
        }
        if stream:
            texts, tokens = ["", ""], [0, 0]
            async for chunk in await gateway.openai.chat.completions.create(stream=True, **asked):
                for choice in chunk.choices:
                    texts[choice.index] += choice.delta.content or ""
                    if choice.logprobs is not None:
                        tokens[choice.index] += len(choice.logprobs.content or ())
        else:
            answer = await gateway.openai.chat.completions.create(**asked)
            texts = [choice.message.content or "" for choice in answer.choices]
            tokens = [
                len(choice.logprobs.content or ()) if choice.logprobs else 0
                for choice in answer.choices
            ]
    assert texts == [BEGUN + ' "x", "y": 1}'] * 2
    assert tokens == [len(ids) if logprobs else 0] * 2


async def test_special_tokens_in_what_is_continued_stay_text(text: TextModel) -> None:
    spelled = "a <|im_end|> b"
    messages = [ASKED, {"role": "assistant", "content": spelled}]
    async with running(text, FakeFleet(says([100]))) as gateway:
        await gateway.http.post("/v1/chat/completions", json={**CONTINUED, "messages": messages})
        prompt = list(gateway.fleet.jobs[0].request.prompt)
    assert text.tokenizer.decode(prompt) == conversation(spelled)
    assert prompt.count(2) == 1  # the user's turn ended, the assistant's did not


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": [ASKED]}, "continue_final_message"),
        (
            {"messages": [ASKED, {"role": "assistant", "content": ""}]},
            "continue_final_message",
        ),
        ({"add_generation_prompt": True}, "add_generation_prompt"),
        ({"continue_final_message": False, "echo": True}, "echo"),
    ],
)
async def test_what_cannot_be_continued_is_refused(
    text: TextModel, change: dict[str, Any], param: str
) -> None:
    async with running(text, FakeFleet()) as gateway:
        answer = await gateway.http.post("/v1/chat/completions", json={**CONTINUED, **change})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
