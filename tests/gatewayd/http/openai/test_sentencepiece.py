"""SentencePiece models (Llama 2, Phi-3): answers over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import FakeFleet, says
from tests.gatewayd.gateway import CHAT, COMPLETION, running
from tests.gatewayd.small_tokenizers import FIRST_BYTE, sentencepiece

IDS = [3, 4, *(FIRST_BYTE + byte for byte in "\n\u4f60".encode()), 9]
TEXT = " hello world\n\u4f60!"


@pytest.fixture(scope="module")
def llama(text: TextModel) -> TextModel:
    return TextModel(sentencepiece(), text.template)


async def test_bytes_of_a_chats_tokens_join_to_its_text(llama: TextModel) -> None:
    body = {**CHAT, "logprobs": True, "top_logprobs": 1}
    async with running(llama, FakeFleet(says(IDS))) as gateway:
        answer = (await gateway.http.post("/v1/chat/completions", json=body)).json()
    choice = answer["choices"][0]
    content = choice["logprobs"]["content"]
    assert choice["message"]["content"] == TEXT.removeprefix(" ")
    assert bytes(b for one in content for b in one["bytes"]).decode() == TEXT.removeprefix(" ")
    assert [one["token"] for one in content[:3]] == ["hello", " world", "\n"]
    assert [one["top_logprobs"][0]["token"] for one in content[:2]] == ["hello", " world"]


@pytest.mark.parametrize("echo", [False, True])
async def test_a_completion_goes_on_where_its_prompt_ends(llama: TextModel, echo: bool) -> None:
    body: dict[str, Any] = {**COMPLETION, "prompt": "hello", "echo": echo, "logprobs": 1}
    async with running(llama, FakeFleet(says(IDS))) as gateway:
        answer = (await gateway.http.post("/v1/completions", json=body)).json()
    choice = answer["choices"][0]
    columns = choice["logprobs"]
    assert choice["text"] == ("hello" if echo else "") + TEXT
    tokens = columns["tokens"]
    assert tokens[0] == ("hello" if echo else " hello")
    assert "bytes:\\xe4" in tokens
    starts = [choice["text"][at:] for at in columns["text_offset"]]
    assert all(
        rest.startswith(token)
        for token, rest in zip(tokens, starts, strict=True)
        if not token.startswith("bytes:")
    )
