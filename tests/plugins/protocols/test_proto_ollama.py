"""Ollama API: request conversion, and lines for any split of parts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import ollama
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewayd_hooks.parsing import Arguments, Part, Reasoning, Text, ToolCall
from gatewayd_hooks.protocols import Delta, HttpResponse, RequestRefusal
from gatewayd_hooks.testing.fake_gateway import FakeGateway, request
from gatewayd_hooks.testing.samples.campaign import campaign
from gatewayd_proto_ollama.answers import Reader
from gatewayd_proto_ollama.config import OllamaConfig
from gatewayd_proto_ollama.requests import convert_chat, convert_generate
from gatewayd_proto_ollama.strategy import Ollama

HI = {"role": "user", "content": "hi"}
LOOK = {"function": {"name": "look"}}


def chat(**fields: Any) -> dict[str, Any]:
    return convert_chat({"model": "nano", "messages": [HI], **fields}).body


def generate(**fields: Any) -> dict[str, Any]:
    fields = {"model": "nano", "prompt": "hi", **fields}
    return convert_generate(fields, lambda _: True).body


def call(gateway: FakeGateway, route: str, **fields: Any) -> HttpResponse:
    async def read() -> HttpResponse:
        asked = request(method, path, json.dumps({"model": "nano", **fields}).encode())
        response = await handlers[method, path](asked)
        if isinstance(response.body, bytes):
            return response
        body = b"".join([piece async for piece in response.body])
        return HttpResponse(body, content_type=response.content_type, ignored=response.ignored)

    method, _, path = route.partition(" ")
    routes = Ollama(OllamaConfig()).routes(gateway)
    handlers = {(route.method, route.path): route.handler for route in routes}
    return asyncio.run(read())


def lines(response: HttpResponse) -> list[dict[str, Any]]:
    assert isinstance(response.body, bytes)
    assert response.body.endswith(b"\n") or response.content_type == "application/json"
    return [json.loads(line) for line in response.body.splitlines()]


def test_a_plain_chat_streams() -> None:
    assert chat() == {"model": "nano", "stream": True, "messages": [HI]}
    assert chat(stream=False)["stream"] is False


def test_an_answer_that_is_begun_is_continued() -> None:
    begun = {"role": "assistant", "content": "It is"}
    assert chat(messages=[HI, begun])["continue_final_message"] is True
    assert "continue_final_message" not in chat(messages=[HI, begun, HI])


def test_options_have_their_names_in_a_chat_completion() -> None:
    options = {
        "temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": 0.1, "seed": 7, "num_predict": 5,
        "stop": ["x"], "repeat_penalty": 1.1, "presence_penalty": 1, "frequency_penalty": 0.3,
    }  # fmt: skip
    body = chat(options=options)
    assert body == chat() | {
        "temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": 0.1, "seed": 7, "max_tokens": 5,
        "stop": ["x"], "repetition_penalty": 1.1, "presence_penalty": 1.0,
        "frequency_penalty": 0.3,
    }  # fmt: skip
    assert isinstance(body["presence_penalty"], float)


def test_a_whole_number_may_be_written_as_a_fraction() -> None:
    body = chat(options={"num_predict": 5.0, "top_k": 3.0, "seed": 7.0})
    assert body == chat() | {"max_tokens": 5, "top_k": 3, "seed": 7}
    assert all(isinstance(body[name], int) for name in ("max_tokens", "top_k", "seed"))
    with pytest.raises(RequestRefusal):
        chat(options={"num_predict": 5.5})


def test_a_tool_is_a_function_also_where_nobody_says_so() -> None:
    tool = {"function": {"name": "f"}}
    for kind in ({}, {"type": None}, {"type": "function"}):
        assert chat(tools=[{**tool, **kind}])["tools"] == [{**tool, "type": "function"}]


@pytest.mark.parametrize("endless", [-1, -2, 0])
def test_an_endless_answer_has_no_bound(endless: int) -> None:
    assert "max_tokens" not in chat(options={"num_predict": endless})


def test_what_is_not_acted_on_is_named() -> None:
    fields = {
        "model": "nano",
        "messages": [HI],
        "keep_alive": "5m",
        "truncate": None,
        "think": "high",
        "options": {"num_ctx": 4096, "mirostat": 0, "seed": None},
    }
    asked = convert_chat(fields)
    assert asked.ignored == ["keep_alive", "options.num_ctx", "options.mirostat"]


@pytest.mark.parametrize(
    ("think", "expected"),
    [
        (None, {}),
        (True, {"enable_thinking": True}),
        (False, {"enable_thinking": False}),
        ("high", {"enable_thinking": True, "reasoning_effort": "high"}),
    ],
)
def test_how_to_think_is_said_to_the_template(think: Any, expected: dict[str, Any]) -> None:
    assert chat(think=think) == chat() | expected
    assert "enable_thinking" not in generate(think=think, raw=True)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("", None),
        ("json", {"type": "json_object"}),
        (
            {"type": "object"},
            {
                "type": "json_schema",
                "json_schema": {"name": "format", "schema": {"type": "object"}, "strict": True},
            },
        ),
    ],
)
def test_a_format_is_a_response_format(form: Any, expected: Any) -> None:
    assert chat(format=form).get("response_format") == expected


def test_calls_and_their_results_find_each_other() -> None:
    calls = [{"function": {"name": name, "arguments": {"x": 1}}} for name in ("a", "b")]
    results = [{"role": "tool", "tool_name": name, "content": name} for name in ("b", "a")]
    said = {"role": "assistant", "thinking": "hm", "tool_calls": calls}
    body = chat(messages=[HI, said, *results])
    ids = [call["id"] for call in body["messages"][1]["tool_calls"]]
    assert len(set(ids)) == 2
    assert [message["tool_call_id"] for message in body["messages"][2:]] == ids[::-1]
    assert body["messages"][1]["reasoning_content"] == "hm"
    assert body["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"x": 1}'


def test_results_without_a_name_come_in_order() -> None:
    calls = [{"id": name, "function": {"name": name}} for name in ("a", "b")]
    said = {"role": "assistant", "content": "", "tool_calls": calls}
    results = [{"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}]
    body = chat(messages=[HI, said, *results])
    assert [message["tool_call_id"] for message in body["messages"][2:]] == ["a", "b"]


def test_a_prompt_is_a_chat_unless_it_is_raw() -> None:
    assert generate(system="s")["messages"] == [{"role": "system", "content": "s"}, HI]
    raw = generate(raw=True, logprobs=True, top_logprobs=3)
    assert raw == {"model": "nano", "stream": True, "prompt": "hi", "logprobs": 3}
    fields = {"model": "nano", "prompt": "hi", "system": "s"}
    bare = convert_generate(fields, lambda _: False)
    assert (bare.is_raw, bare.ignored) == (True, ["system"])


@pytest.mark.parametrize(
    ("route", "fields", "param"),
    [
        ("POST /api/chat", {"messages": [3]}, "messages[0]"),
        ("POST /api/chat", {"messages": [{**HI, "images": ["x"]}]}, "messages[0].images"),
        ("POST /api/chat", {"messages": [HI], "format": "xml"}, "format"),
        ("POST /api/chat", {"messages": [HI], "stream": 1}, "stream"),
        ("POST /api/chat", {"messages": [HI], "think": "much"}, "think"),
        ("POST /api/chat", {"messages": [HI], "options": []}, None),
        ("POST /api/chat", {"messages": [HI], "options": [1]}, "options"),
        ("POST /api/chat", {"messages": [HI], "options": {"num_predict": "x"}},
         "options.num_predict"),
        ("POST /api/generate", {"prompt": "x", "suffix": "y"}, "suffix"),
        ("POST /api/generate", {"prompt": "x", "template": "y"}, "template"),
        ("POST /api/generate", {"prompt": "x", "context": [1]}, "context"),
        ("POST /api/generate", {"prompt": "x", "images": ["y"]}, "images"),
        ("POST /api/generate", {"prompt": 3}, "prompt"),
        ("POST /api/show", {"model": ""}, "model"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_by_its_place(
    route: str, fields: dict[str, Any], param: str | None
) -> None:
    if param is None:
        call(FakeGateway(), route, **fields)
        return
    with pytest.raises(RequestRefusal) as caught:
        call(FakeGateway(), route, **fields)
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize("name", ["nano", "nano:latest"])
def test_names_may_have_the_tag_of_the_latest(name: str) -> None:
    gateway = FakeGateway()
    (answer,) = lines(call(gateway, "POST /api/chat", model=name, messages=[HI], stream=False))
    assert (answer["model"], gateway.bodies[0]["model"]) == (name, "nano")


def test_a_name_that_is_not_served_is_a_404_with_the_names_that_are() -> None:
    with pytest.raises(
        RequestRefusal, match="model 'other' not found; served: nano, nano-al"
    ) as caught:
        call(FakeGateway(), "POST /api/chat", model="other", messages=[HI])
    assert caught.value.status == 404


@pytest.mark.parametrize(
    ("route", "fields", "kind"),
    [
        ("POST /api/chat", {"messages": [HI]}, ollama.ChatResponse),
        ("POST /api/generate", {"prompt": "hi"}, ollama.GenerateResponse),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_answers_have_the_clients_types(
    route: str, fields: dict[str, Any], kind: Any, stream: bool
) -> None:
    gateway = FakeGateway()
    gateway.says(Reasoning("hm"), Text("a"), Text("b"), finish_reason="length")
    response = call(gateway, route, stream=stream, **fields)
    found = [kind.model_validate(line) for line in lines(response)]
    texts = [each.message.content if "message" in each else each.response for each in found]
    thoughts = [each.message.thinking if "message" in each else each.thinking for each in found]
    assert "".join(texts) == "ab"
    assert "".join(thought or "" for thought in thoughts) == "hm"
    assert [each.done for each in found] == [False] * (len(found) - 1) + [True]
    last = found[-1]
    assert (last.done_reason, last.prompt_eval_count, last.eval_count) == ("length", 12, 5)
    times = (last.total_duration, last.load_duration, last.prompt_eval_duration, last.eval_duration)
    assert times == (330_000_000, 1_000_000, 20_000_000, 300_000_000)
    assert response.content_type == ("application/x-ndjson" if stream else "application/json")
    assert gateway.answers[0].num_closed == stream  # the gateway closes those that were read


def test_thoughts_are_left_out_if_they_are_not_wanted() -> None:
    gateway = FakeGateway()
    gateway.says(Reasoning("hm"), Text("a"))
    found = lines(call(gateway, "POST /api/chat", messages=[HI], think=False))
    assert [line["message"] for line in found] == [
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": ""},
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_calls_of_tools_are_told_when_they_are_complete(stream: bool) -> None:
    gateway = FakeGateway()
    gateway.says(
        ToolCall(0, "look"), Arguments(0, '{"a"'), Arguments(0, ":1}"), ToolCall(1, "wait"),
        finish_reason="tool_calls",
    )  # fmt: skip
    found = lines(call(gateway, "POST /api/chat", messages=[HI], stream=stream, tools=[LOOK]))
    messages = [ollama.ChatResponse.model_validate(line).message for line in found]
    calls = [one.function for message in messages for one in message.tool_calls or ()]
    assert [(one.name, one.arguments) for one in calls] == [("look", {"a": 1}), ("wait", {})]
    assert found[-1]["done_reason"] == "stop"


def test_logprobs_are_where_clients_look() -> None:
    gateway = FakeGateway()
    one = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
    gateway.deltas = [Delta(0, (Text("a"),), logprobs=[one]), Delta(0, (), "stop")]
    found = lines(call(gateway, "POST /api/chat", messages=[HI], logprobs=True, top_logprobs=2))
    assert ollama.ChatResponse.model_validate(found[0]).logprobs[0].token == "a"  # type: ignore[index]
    assert (gateway.bodies[0]["logprobs"], gateway.bodies[0]["top_logprobs"]) == (True, 2)


@pytest.mark.parametrize(
    ("route", "fields"),
    [("POST /api/chat", {"messages": []}), ("POST /api/chat", {}), ("POST /api/generate", {})],
)
def test_nothing_to_answer_loads_the_model(route: str, fields: dict[str, Any]) -> None:
    gateway = FakeGateway()
    (answer,) = lines(call(gateway, route, **fields))
    assert (answer["done"], answer["done_reason"]) == (True, "load")
    assert gateway.loads == ["nano"]
    gateway.refusal = RequestRefusal(503, "not loaded yet")
    with pytest.raises(RequestRefusal, match="not loaded yet"):
        call(gateway, route, **fields)


def test_texts_become_vectors() -> None:
    gateway = FakeGateway()
    answer = call(gateway, "POST /api/embed", input=["a", "b"], dimensions=2, keep_alive="5m")
    found = ollama.EmbedResponse.model_validate_json(answer.body)  # type: ignore[arg-type]
    assert found.embeddings == [[0, 1], [1, 1]]
    assert (found.model, found.prompt_eval_count) == ("nano", gateway.usage.prompt_tokens)
    assert answer.ignored == ["keep_alive"]
    call(gateway, "POST /api/embed", input="a", truncate=False)
    older = call(gateway, "POST /api/embeddings", prompt="a")
    assert json.loads(older.body) == {"embedding": [0, 1]}  # type: ignore[arg-type]
    assert gateway.bodies == [
        {"model": "nano", "input": ["a", "b"], "truncate_prompt_tokens": -1, "dimensions": 2},
        {"model": "nano", "input": "a"},
        {"model": "nano", "input": "a", "normalize": False, "truncate_prompt_tokens": -1},
    ]


@pytest.mark.parametrize(
    ("route", "none"),
    [("embed", {"model": "nano", "embeddings": []}), ("embeddings", {"embedding": []})],
)
def test_no_text_has_no_vector_and_loads_the_model(route: str, none: dict[str, Any]) -> None:
    gateway = FakeGateway()
    assert json.loads(call(gateway, f"POST /api/{route}").body) == none  # type: ignore[arg-type]
    assert gateway.loads == ["nano"]
    gateway.refusal = RequestRefusal(503, "not loaded yet")
    with pytest.raises(RequestRefusal, match="not loaded yet"):
        call(gateway, f"POST /api/{route}")


@pytest.mark.parametrize(
    ("route", "fields", "param"),
    [
        ("embed", {"input": [5, 6]}, "input[0]"),
        ("embed", {"input": {"a": "b"}}, "input"),
        ("embed", {"input": "a", "truncate": 1}, "truncate"),
        ("embeddings", {"prompt": ["a"]}, "prompt"),
    ],
)
def test_what_is_no_text_has_no_vector(route: str, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestRefusal) as caught:
        call(FakeGateway(), f"POST /api/{route}", **fields)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_more_than_the_context_has_left_is_a_bound() -> None:
    class Full(FakeGateway):
        async def chat(self, body: Any, request: Any) -> Any:
            if "max_tokens" in body:
                raise RequestRefusal(400, "no", code="context_length_exceeded", param="max_tokens")
            return await super().chat(body, request)

    asked = {"messages": [HI], "options": {"num_predict": 10**6}}
    found = lines(call(Full(), "POST /api/chat", **asked))
    assert found[-1]["done"]


def test_the_version_is_what_the_settings_say() -> None:
    assert json.loads(call(FakeGateway(), "GET /api/version").body) == {"version": "0.12.6"}  # type: ignore[arg-type]
    assert call(FakeGateway(), "GET /").body == b"Ollama is running"


def test_an_error_is_a_sentence_that_names_the_option() -> None:
    gateway = FakeGateway()
    gateway.refusal = RequestRefusal(400, "max_tokens is 0; the minimum is 1", param="max_tokens")
    with pytest.raises(RequestRefusal) as caught:
        call(gateway, "POST /api/chat", messages=[{"role": "user", "content": "a"}])
    error = Ollama(OllamaConfig()).error(caught.value, "r")
    assert error.body == b'{"error":"options.num_predict is 0; the minimum is 1"}\n'
    assert error.status == 400


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("response_format.json_schema.schema", "format"),
        ("response_format", "format"),
        ("messages[0].content", "system"),
        ("messages[1].content", "prompt"),
        ("messages", "prompt"),
        ("top_p", "options.top_p"),
        ("top_logprobs", "top_logprobs"),
    ],
)
def test_a_refusal_names_the_place_that_was_written(theirs: str, ours: str) -> None:
    gateway = FakeGateway()
    gateway.refusal = RequestRefusal(400, f"{theirs}: no", param=theirs)
    with pytest.raises(RequestRefusal) as caught:
        call(gateway, "POST /api/generate", prompt="a", system="b")
    assert (caught.value.param, caught.value.message) == (ours, f"{ours}: no")


@pytest.mark.parametrize(
    ("route", "fields", "theirs", "ours"),
    [
        ("embeddings", {"prompt": "a"}, "input", "prompt"),
        ("embed", {"input": "a"}, "input[0]", "input[0]"),
        ("embed", {"input": "a"}, "truncate_prompt_tokens", "truncate"),
    ],
)
def test_a_refusal_of_a_text_has_the_name_that_was_sent(
    route: str, fields: dict[str, Any], theirs: str, ours: str
) -> None:
    gateway = FakeGateway()
    gateway.refusal = RequestRefusal(400, f"{theirs} is too long", param=theirs)
    with pytest.raises(RequestRefusal) as caught:
        call(gateway, f"POST /api/{route}", **fields)
    assert (caught.value.param, caught.value.message) == (ours, f"{ours} is too long")


SCRIPT: Sequence[Part] = (
    Reasoning("let me think"),
    Text("I look twice. "),
    ToolCall(0, "look"),
    Arguments(0, '{"path": "/tmp"}'),
    ToolCall(1, "look"),
    Arguments(1, '{"deep": [1, 2]}'),
)


@campaign
@given(cuts=st.lists(st.integers(0, 70), max_size=8))
def test_where_an_answer_is_cut_does_not_matter(cuts: list[int]) -> None:
    pieces: list[Part] = []
    for part in SCRIPT:
        if isinstance(part, ToolCall):
            pieces.append(part)
        else:
            pieces += [part._replace(text=letter) for letter in part.text]
    edges = [0, *sorted(cut for cut in set(cuts) if 0 < cut < len(pieces)), len(pieces)]
    reader, text, thought = Reader(), "", ""
    calls: list[dict[str, Any]] = []
    for begin, end in pairwise(edges):
        said = reader.read(pieces[begin:end], is_last=end == len(pieces))
        text, thought, calls = text + said.text, thought + said.thought, calls + said.calls
    assert (text, thought) == ("I look twice. ", "let me think")
    assert [one["function"]["arguments"] for one in calls] == [{"path": "/tmp"}, {"deep": [1, 2]}]
