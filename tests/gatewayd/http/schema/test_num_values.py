"""Bodies of very many small values: refused before objects are made."""

from __future__ import annotations

import contextlib
import json
import random
import tracemalloc
from typing import Any

import pytest

from gatewayd.errors import InvalidRequest
from gatewayd.http.openai.conversation import for_template
from gatewayd.http.parse import parse
from gatewayd.http.schema.chat import ChatRequest
from gatewayd.http.schema.completion import CompletionRequest
from gatewayd.http.schema.embeddings import EmbeddingRequest
from gatewayd.plugins.parsers import ModelParsers
from gatewayd_hooks.requests.http import HttpRequest
from gatewayd_hooks.requests.num_values import MOST_VALUES
from gatewayd_hooks.requests.refusal import RequestRefusal

MIB = 1 << 20


def counted(value: Any) -> int:
    """Lists, objects and strings, by looking at each."""
    if isinstance(value, dict):
        return 1 + len(value) + sum(map(counted, value.values()))
    if isinstance(value, list):
        return 1 + sum(map(counted, value))
    return int(isinstance(value, str))


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "nano", **fields}).encode()


@pytest.mark.parametrize(
    "prompt", [[[1]] * 300_000, ["a"] * 300_000, [{}] * 300_000, ['"\\"[' * 3] * 300_000]
)
def test_a_body_of_too_many_values_is_refused_and_takes_little(prompt: list[Any]) -> None:
    sent = body(prompt=prompt)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest) as refused:
            parse(CompletionRequest, sent)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert counted(json.loads(sent)) > MOST_VALUES
    assert refused.value.message == (
        f"the body has more than {MOST_VALUES} lists, objects and strings, which is the maximum: "
        "send it in parts"
    )
    assert peak < 3 * len(sent) + MIB, "decoding it would take ten times as much"


def test_texts_and_tokens_are_as_long_as_they_may_be() -> None:
    text = "".join(random.choices('[]{}"\\ab,:', k=2 * MIB))
    request, _ = parse(CompletionRequest, body(prompt=text))
    assert request.prompt == text
    tokens = [random.randrange(100_000) for _ in range(MIB)]
    request, _ = parse(CompletionRequest, body(prompt=tokens))
    assert request.prompt == tokens
    inputs = [[7] * 50] * 2048
    asked, _ = parse(EmbeddingRequest, body(input=inputs))
    assert asked.input == inputs


@pytest.mark.parametrize("more", [0, 1])
def test_the_limit_is_exact(more: int) -> None:
    sent = body(user=[""] * (MOST_VALUES - 7 + more), prompt="[[")
    assert counted(json.loads(sent)) == MOST_VALUES + more
    with pytest.raises(InvalidRequest, match="more than" if more else "user"):
        parse(CompletionRequest, sent)


def test_what_is_no_json_is_told_so() -> None:
    with pytest.raises(InvalidRequest, match="is not JSON"):
        parse(CompletionRequest, b'""' * (MOST_VALUES - 10))


@pytest.mark.parametrize("value", [[1], {}, "a"])
def test_bodies_of_protocols_have_the_same_limit(value: object) -> None:
    sent = body(messages=[value] * 300_000)
    tracemalloc.start()
    try:
        with pytest.raises(RequestRefusal, match=f"more than {MOST_VALUES} lists") as refused:
            HttpRequest("POST", "/v1/messages", {}, {}, {}, sent, "req").json()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (refused.value.status, refused.value.code) == (400, "invalid_json")
    assert peak < 3 * len(sent) + MIB


CALLS = [('{"a":[' + "{}," * 50_000 + "{}]}", 6), ('{"a":"[\\"' + "[" * 90_000 + '"}', 6)]


@pytest.mark.parametrize(("arguments", "num_calls"), CALLS, ids=["objects", "a text"])
def test_arguments_of_calls_are_decoded_up_to_the_same_limit(
    arguments: str, num_calls: int
) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    message = {"role": "assistant", "content": "x", "tool_calls": [call]}
    request, _ = parse(ChatRequest, body(messages=[message] * num_calls))
    is_text = counted(json.loads(arguments)) < 10
    tracemalloc.start()
    try:
        with contextlib.nullcontext() if is_text else pytest.raises(InvalidRequest, match="calls"):
            for_template(request.messages, ModelParsers())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * MIB
