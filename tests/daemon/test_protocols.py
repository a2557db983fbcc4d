"""Anthropic and Ollama clients: served over a real port by the embedded model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import jsonschema
import ollama
import pytest

from tests.daemon.conftest import Running, nano_daemon

KEY = "gw_test_0123456789"
ASK = "What does os.path.join do?"
GREEDY = {"temperature": 0}
HI: list[dict[str, Any]] = [{"role": "user", "content": ASK}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "size": {"enum": [1, 2]}},
    "required": ["name", "size"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One for all: it has a key, so that both ways of sending it are seen."""
    folder = tmp_path_factory.mktemp("protocols")
    env = {
        "GATEWAYD_SERVER__API_KEY": KEY,
        "GATEWAYD_STORE__PATH": "temporary",
        "GATEWAYD_SERVER__BODY_BYTES": "64KiB",
    }
    with nano_daemon(folder, **env) as running:
        yield running


@pytest.fixture
def claude(daemon: Running) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=daemon.url, api_key=KEY, max_retries=0, timeout=30) as client:
        yield client


@pytest.fixture
def llama(daemon: Running) -> Iterator[ollama.Client]:
    headers = {"authorization": f"Bearer {KEY}"}
    with ollama.Client(host=daemon.url, headers=headers, timeout=30) as client:
        yield client


def openai_text(daemon: Running, max_tokens: int) -> str:
    """What the gateway's own route answers, greedily."""
    body = {"model": "nano", "messages": HI, "max_tokens": max_tokens, "temperature": 0}
    headers = {"x-api-key": KEY}
    answer = httpx.post(
        f"{daemon.url}/v1/chat/completions", json=body, headers=headers, timeout=30
    ).json()
    text: str = answer["choices"][0]["message"]["content"]
    return text


def test_a_message_says_what_a_chat_completion_says(daemon: Running, claude: Any) -> None:
    message = claude.messages.create(model="nano", max_tokens=12, extra_body=GREEDY, messages=HI)
    (block,) = message.content
    assert block.type == "text"
    assert block.text == openai_text(daemon, 12)
    assert message.id.startswith("msg_")
    assert message._request_id is not None
    assert message._request_id.startswith("req_")
    count = claude.messages.count_tokens(model="nano", messages=HI)
    usage = message.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == count.input_tokens
    assert usage.output_tokens <= 12


def test_a_streamed_message_is_the_whole_one(daemon: Running, claude: Any) -> None:
    seen = []
    with claude.messages.stream(
        model="nano", max_tokens=12, extra_body=GREEDY, messages=HI,
        system=[{"type": "text", "text": "Be kind."}],
    ) as stream:  # fmt: skip
        text = ""
        for event in stream:
            seen.append(event.type)
            if event.type == "text":
                text += event.text
        final = stream.get_final_message()
    whole = claude.messages.create(
        model="nano", max_tokens=12, extra_body=GREEDY, system="Be kind.", messages=HI
    )  # fmt: skip
    assert text == whole.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert seen[:2] == ["message_start", "content_block_start"]
    assert seen[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_a_stop_sequence_ends_a_message(daemon: Running, claude: Any) -> None:
    word = openai_text(daemon, 12).split()[2]
    message = claude.messages.create(
        model="nano", max_tokens=12, extra_body=GREEDY, stop_sequences=[word], messages=HI
    )  # fmt: skip
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", word)


def test_errors_are_the_clients_exceptions(daemon: Running, claude: Any) -> None:
    ask: dict[str, Any] = {"model": "nano", "max_tokens": 2, "messages": HI}
    with pytest.raises(anthropic.NotFoundError, match="the model 'other' does not exist") as caught:
        claude.messages.create(**{**ask, "model": "other"})
    assert caught.value.request_id is not None
    body: Any = caught.value.body
    assert body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match="temperature is 7; the maximum is 2"):
        claude.messages.create(**ask, extra_body={"temperature": 7})
    long = [{"role": "user", "content": "many words " * 3000}]
    with pytest.raises(anthropic.BadRequestError, match="the model's context is 2048"):
        claude.messages.create(**{**ask, "messages": long})
    huge = [{"role": "user", "content": "x" * 70_000}]
    with pytest.raises(anthropic.RequestTooLargeError):
        claude.messages.create(**{**ask, "messages": huge})
    with (
        anthropic.Anthropic(base_url=daemon.url, api_key="wrong", max_retries=0) as other,
        pytest.raises(anthropic.AuthenticationError, match="the API key is not valid"),
    ):
        other.messages.create(**ask)


def test_bearers_of_the_key_are_let_in_by_both(daemon: Running) -> None:
    body = {"model": "nano", "max_tokens": 2, "messages": HI}
    for path in ("/v1/messages", "/api/chat"):
        for headers in ({"x-api-key": KEY}, {"authorization": f"Bearer {KEY}"}):
            answer = httpx.post(daemon.url + path, json=body, headers=headers, timeout=30)
            assert answer.status_code == 200
        assert httpx.post(daemon.url + path, json=body).status_code == 401


def test_more_tokens_than_the_context_has_are_a_bound(claude: Any) -> None:
    message = claude.messages.create(model="nano", max_tokens=4000, messages=HI)
    assert message.stop_reason in ("end_turn", "model_context_window_exceeded")


@pytest.mark.parametrize("stream", [False, True])
def test_ollamas_chat_says_what_a_chat_completion_says(
    daemon: Running, llama: Any, stream: bool
) -> None:
    options = {"temperature": 0, "num_predict": 12}
    answer: Any = llama.chat("nano:latest", messages=HI, options=options, stream=stream)
    parts = list(answer) if stream else [answer]
    assert "".join(part.message.content for part in parts) == openai_text(daemon, 12)
    last = parts[-1]
    assert last.done
    assert last.model == "nano:latest"
    assert last.prompt_eval_count > 0
    assert 0 < last.eval_count <= 12
    assert 0 < last.eval_duration < last.total_duration
    assert all(not part.done for part in parts[:-1])


@pytest.mark.parametrize("stream", [False, True])
def test_ollamas_generate_continues_and_answers(daemon: Running, llama: Any, stream: bool) -> None:
    options = {"temperature": 0, "num_predict": 12}

    def said(prompt: str, **more: Any) -> str:
        answer: Any = llama.generate("nano", prompt, options=options, stream=stream, **more)
        return "".join(part.response for part in (answer if stream else [answer]))

    assert said(ASK) == openai_text(daemon, 12)
    body = {"model": "nano", "prompt": "def add(a, b", "max_tokens": 12, "temperature": 0}
    plain = httpx.post(
        f"{daemon.url}/v1/completions", json=body, headers={"x-api-key": KEY}, timeout=30
    ).json()
    assert said("def add(a, b", raw=True) == plain["choices"][0]["text"]


def test_ollamas_vectors_are_those_of_embeddings(daemon: Running, llama: Any) -> None:
    def ours(texts: list[str], **more: Any) -> list[list[float]]:
        answer = httpx.post(
            f"{daemon.url}/v1/embeddings",
            json={"model": "nano", "input": texts, **more},
            headers={"x-api-key": KEY},
            timeout=30,
        ).json()
        return [one["embedding"] for one in answer["data"]]

    texts = ["def f(x): return x", "hello"]
    found = llama.embed(model="nano:latest", input=texts, dimensions=16)
    assert found.model == "nano:latest"
    assert found.prompt_eval_count > 0
    for vector, expected in zip(found.embeddings, ours(texts, dimensions=16), strict=True):
        assert vector == pytest.approx(expected, abs=1e-5)
    older = llama.embeddings(model="nano", prompt=texts[0]).embedding
    assert older == pytest.approx(ours(texts[:1], normalize=False)[0], abs=1e-4)
    with pytest.raises(ollama.ResponseError, match="the maximum of the model is 2047") as caught:
        llama.embed(model="nano", input="word " * 2100, truncate=False)
    assert caught.value.status_code == 400
    assert len(llama.embed(model="nano", input="word " * 2100).embeddings) == 1


def test_ollamas_clients_find_the_model(llama: Any) -> None:
    (listed,) = llama.list().models
    assert listed.model == "nano:latest"
    assert llama.show(listed.model).modelinfo["llama.context_length"] == 2048
    (loaded,) = llama.ps().models
    assert loaded.context_length == 2048


def test_ollamas_errors_are_its_clients_exceptions(llama: Any) -> None:
    with pytest.raises(ollama.ResponseError, match="model 'other' not found") as caught:
        llama.chat("other", messages=HI)
    assert caught.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match=r"options\.temperature is 7.*maximum is 2"):
        llama.chat("nano", messages=HI, options={"temperature": 7})
    with pytest.raises(ollama.ResponseError, match=r"there is no /api/push"):
        llama.push("nano")


def test_ollamas_format_is_followed(llama: Any) -> None:
    for _ in range(3):
        answer = llama.chat("nano", messages=HI, format=SCHEMA, options={"temperature": 1.5})
        assert answer.message.content is not None
        jsonschema.validate(json.loads(answer.message.content), SCHEMA)


LOOK = {
    "type": "object",
    "properties": {"path": {"type": "string", "maxLength": 12}},
    "required": ["path"],
    "additionalProperties": False,
}


def test_a_tool_goes_to_the_client_and_its_result_comes_back(claude: Any) -> None:
    tools = [{"name": "look", "description": "Looks.", "input_schema": LOOK}]
    ask = {"model": "nano", "max_tokens": 200, "tools": tools, "messages": HI}
    must = {"type": "tool", "name": "look", "disable_parallel_tool_use": True}
    message = claude.messages.create(**ask, tool_choice=must)
    (use,) = message.content
    assert (message.stop_reason, use.type, use.name) == ("tool_use", "tool_use", "look")
    jsonschema.validate(use.input, LOOK)
    with claude.messages.stream(**ask, tool_choice=must) as stream:
        streamed = stream.get_final_message()
    assert [block.type for block in streamed.content] == ["tool_use"]
    jsonschema.validate(streamed.content[0].input, LOOK)
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "a file"}
    more = [
        *HI,
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [result]},
    ]
    count = claude.messages.count_tokens(model="nano", messages=more, tools=tools).input_tokens
    assert count > claude.messages.count_tokens(model="nano", messages=HI).input_tokens
    none = {"type": "none"}
    last = claude.messages.create(**{**ask, "messages": more, "max_tokens": 8}, tool_choice=none)
    assert last.usage.output_tokens > 0


@pytest.mark.parametrize("stream", [False, True])
def test_ollama_has_tools_too(llama: Any, stream: bool) -> None:
    function = {"name": "look", "description": "Looks.", "parameters": LOOK}
    tools = [{"type": "function", "function": function}]
    call = {"function": {"name": "look", "arguments": {"path": "/"}}}
    messages = [*HI, {"role": "assistant", "tool_calls": [call]}]
    messages += [{"role": "tool", "tool_name": "look", "content": "a file"}]
    options = {"num_predict": 8}
    answer = llama.chat("nano", messages=messages, tools=tools, options=options, stream=stream)
    last = [*answer][-1] if stream else answer
    assert last.done
    assert llama.show("nano").capabilities == ["completion", "tools"]


def test_what_both_ignore_is_named(daemon: Running) -> None:
    body = {"model": "nano", "max_tokens": 2, "messages": HI, "container": "c", "keep_alive": 5}
    for path, names in (
        ("/v1/messages", "container, keep_alive"),
        ("/api/chat", "max_tokens, container, keep_alive"),
    ):
        answer = httpx.post(daemon.url + path, json=body, headers={"x-api-key": KEY}, timeout=30)
        assert answer.headers["x-gateway-ignored-params"] == names


def test_routes_of_both_are_in_the_description(daemon: Running) -> None:
    answer = httpx.get(f"{daemon.url}/openapi.json", headers={"x-api-key": KEY}).json()
    assert {"/v1/messages", "/v1/messages/count_tokens", "/api/chat", "/"} <= set(answer["paths"])
