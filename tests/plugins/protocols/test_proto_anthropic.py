"""Anthropic Messages API: request conversion, and events for any split of parts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from gatewayd_hooks.parsing import Arguments, Part, Reasoning, Text, ToolCall
from gatewayd_hooks.protocols import HttpResponse, RequestRefusal
from gatewayd_hooks.testing.fake_gateway import FakeGateway, request
from gatewayd_hooks.testing.samples.campaign import campaign
from gatewayd_proto_anthropic.events import Events
from gatewayd_proto_anthropic.requests import convert_request
from gatewayd_proto_anthropic.strategy import Anthropic

ASK = {"model": "nano", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
TOOL = {"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}


def asked(**fields: Any) -> dict[str, Any]:
    return convert_request({**ASK, **fields}).body


def refused(**fields: Any) -> RequestRefusal:
    with pytest.raises(RequestRefusal) as caught:
        convert_request({**ASK, **fields})
    assert caught.value.status == 400
    return caught.value


def turns(*contents: Any) -> dict[str, Any]:
    roles = ["user", "assistant"] * len(contents)
    pairs = zip(roles, contents, strict=False)
    return {"messages": [{"role": role, "content": content} for role, content in pairs]}


def call(gateway: FakeGateway, **fields: Any) -> HttpResponse:
    (create, _) = Anthropic().routes(gateway)
    body = json.dumps({**ASK, **fields}).encode()
    return asyncio.run(read(create.handler(request("POST", "/v1/messages", body))))


async def read(answering: Any) -> HttpResponse:
    response: HttpResponse = await answering
    if isinstance(response.body, bytes):
        return response
    body = b"".join([piece async for piece in response.body])
    return HttpResponse(body, response.status, response.content_type, response.headers)


def events(body: object) -> list[dict[str, Any]]:
    """Checked against the SDK's own types; each named as its data says."""
    assert isinstance(body, bytes)
    found = []
    for block in body.decode().removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        if event["type"] != "ping":
            EVENT.validate_python(event)
        found.append(event)
    return found


def test_a_plain_request_is_a_chat_completion() -> None:
    assert asked() == {**ASK}


def test_an_answer_that_is_begun_is_continued() -> None:
    assert asked(**turns("hi", "It is"))["continue_final_message"] is True
    assert "continue_final_message" not in asked(**turns("hi", "It is", "what?"))
    use = [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]
    assert refused(**turns("hi", use)).param == "messages"


def test_a_system_prompt_is_text_or_blocks() -> None:
    blocks = [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": {}}]
    assert asked(system="a")["messages"][0] == {"role": "system", "content": "a"}
    assert asked(system=blocks)["messages"][0] == {"role": "system", "content": "a\nb"}


def test_uses_of_tools_and_their_results_are_messages_of_their_own() -> None:
    use = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": "é"}}
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "seen"}
    bad = {"type": "tool_result", "tool_use_id": "toolu_2", "is_error": True}
    text = {"type": "text", "text": "so?"}
    body = asked(**turns("hi", [thought, text, use], [result, bad, text]))
    assert body["messages"][1:] == [
        {
            "role": "assistant",
            "content": "so?",
            "reasoning_content": "hm",
            "tool_calls": [
                {
                    "id": "toolu_1",
                    "type": "function",
                    "function": {"name": "look", "arguments": '{"at": "é"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "toolu_1", "content": "seen"},
        {"role": "tool", "tool_call_id": "toolu_2", "content": "Error: "},
        {"role": "user", "content": "so?"},
    ]


def test_turns_of_one_role_in_a_row_are_one() -> None:
    messages = [{"role": "user", "content": one} for one in "ab"]
    assert asked(messages=messages)["messages"] == [{"role": "user", "content": "a\nb"}]


def test_parameters_have_their_names_in_a_chat_completion() -> None:
    body = asked(
        stop_sequences=["x"],
        temperature=0.5,
        top_p=0.9,
        top_k=5,
        metadata={"user_id": "me"},
        service_tier="standard_only",
        stream=True,
        output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}},
    )
    form = {"name": "output", "schema": {"type": "object"}, "strict": True}
    assert body == {
        **ASK,
        "stop": ["x"],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "user": "me",
        "service_tier": "default",
        "stream": True,
        "response_format": {"type": "json_schema", "json_schema": form},
    }
    thinking = asked(thinking={"type": "adaptive"}, output_config={"effort": "low"})
    assert thinking == {**ASK, "enable_thinking": True, "reasoning_effort": "low"}
    assert asked(service_tier="auto", speed="fast")["service_tier"] == "fast"
    assert asked(service_tier="auto", speed="standard")["service_tier"] == "auto"


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        (
            {"type": "any", "disable_parallel_tool_use": True},
            {"tool_choice": "required", "parallel_tool_calls": False},
        ),
        (
            {"type": "tool", "name": "look"},
            {"tool_choice": {"type": "function", "function": {"name": "look"}}},
        ),
    ],
)
def test_tools_and_their_choice(choice: Any, expected: dict[str, Any]) -> None:
    body = asked(tools=[TOOL], tool_choice=choice)
    function = {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}
    assert body == {**ASK, "tools": [{"type": "function", "function": function}], **expected}


def test_what_is_not_acted_on_is_named() -> None:
    told = convert_request(
        {
            **ASK,
            "tools": [{**TOOL, "defer_loading": True}],
            "output_config": {"effort": "low"},
            "thinking": {"type": "enabled", "budget_tokens": 2000},
            "container": "c",
            "inference_geo": None,
            "cache_control": {"type": "ephemeral"},
            **turns("a", [{"type": "redacted_thinking", "data": "x"}], "b"),
        }
    )
    assert sorted(told.ignored) == [
        "container",
        "messages[1].content[0].data",
        "thinking.budget_tokens",
        "tools[0].defer_loading",
    ]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"model": None}, "model"),
        ({"model": 3}, "model"),
        ({"messages": "hi"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [7]}, "messages[0]"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        (turns([{"type": "image", "source": {}}]), "messages[0].content[0].type"),
        (turns([{"type": "document", "source": {"type": "url"}}]),
         "messages[0].content[0].source.type"),
        (turns([{"type": "text"}]), "messages[0].content[0].text"),
        (turns([{"type": "tool_result"}]), "messages[0].content[0].tool_use_id"),
        (turns("a", [{"type": "tool_use", "id": "i", "name": "n", "input": 3}], "b"),
         "messages[1].content[0].input"),
        ({"system": 3}, "system"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "tools[0].type"),
        ({"tools": [{"name": "w"}]}, "tools[0].input_schema"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"thinking": {"type": "often"}}, "thinking.type"),
        ({"service_tier": "gold"}, "service_tier"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"output_format": {"type": "xml"}}, "output_format.type"),
        ({"metadata": {"user_id": 3}}, "metadata.user_id"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_by_its_place(fields: dict[str, Any], param: str) -> None:
    refusal = refused(**fields)
    assert refusal.param == param
    assert refusal.message.startswith(param)


def test_images_are_refused_with_a_sentence() -> None:
    refusal = refused(**turns([{"type": "image", "source": {}}]))
    assert "cannot read: send text" in refusal.message


def test_a_whole_message_has_the_sdks_type() -> None:
    gateway = FakeGateway()
    gateway.says(
        Reasoning("hm"), Text("I "), Text("look."), ToolCall(0, "look"), Arguments(0, '{"a"'),
        Arguments(0, ":1}"), ToolCall(1, "look"), finish_reason="tool_calls",
    )  # fmt: skip
    message = Message.model_validate_json(call(gateway).body)  # type: ignore[arg-type]
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert message.content[1].text == "I look."  # type: ignore[union-attr]
    first, second = message.content[2:]
    assert (first.input, second.input) == ({"a": 1}, {})  # type: ignore[union-attr]
    assert first.id != second.id  # type: ignore[union-attr]
    assert message.stop_reason == "tool_use"
    usage = message.usage
    counts = (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens)
    assert counts == (4, 8, 5)


def test_arguments_that_were_cut_short_are_given_as_they_are() -> None:
    gateway = FakeGateway()
    gateway.says(ToolCall(0, "look"), Arguments(0, '{"a'), finish_reason="length")
    message = json.loads(call(gateway).body)  # type: ignore[arg-type]
    assert message["content"][0]["input"] == {"INVALID_JSON": '{"a'}


@pytest.mark.parametrize(
    ("reason", "stop", "expected"),
    [
        ("stop", None, ("end_turn", None)),
        ("stop", "END", ("stop_sequence", "END")),
        ("length", None, ("max_tokens", None)),
        ("tool_calls", None, ("tool_use", None)),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_how_it_ended_is_told(
    reason: str, stop: str | None, expected: tuple[str, str | None], stream: bool
) -> None:
    gateway = FakeGateway()
    gateway.says(Text("x"), finish_reason=reason, stop=stop)
    body = call(gateway, stream=stream).body
    told = events(body)[-2]["delta"] if stream else json.loads(body)  # type: ignore[arg-type]
    assert (told["stop_reason"], told["stop_sequence"]) == expected


def test_more_than_the_context_has_left_is_a_bound() -> None:
    class Full(FakeGateway):
        async def chat(self, body: Any, request: Any) -> Any:
            if "max_tokens" in body:
                raise RequestRefusal(400, "no", code="context_length_exceeded", param="max_tokens")
            return await super().chat(body, request)

    gateway = Full()
    gateway.says(Text("x"), finish_reason="length")
    assert json.loads(call(gateway).body)["stop_reason"] == "model_context_window_exceeded"  # type: ignore[arg-type]


def test_a_prompt_that_does_not_fit_is_refused() -> None:
    gateway = FakeGateway()
    gateway.refusal = RequestRefusal(400, "no", code="context_length_exceeded", param="messages")
    with pytest.raises(RequestRefusal):
        call(gateway)
    assert len(gateway.bodies) == 1


def test_a_stream_has_the_events_of_the_api_in_order() -> None:
    gateway = FakeGateway()
    gateway.says(Reasoning("hm"), Text("a"), Text("b"), ToolCall(0, "look"), Arguments(0, "{}"))
    found = events(call(gateway, stream=True).body)
    assert [event["type"] for event in found] == [
        "message_start",
        "content_block_start", "ping", "content_block_delta", "content_block_stop",
        "content_block_start", "content_block_delta", "content_block_delta", "content_block_stop",
        "content_block_start", "content_block_delta", "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip
    deltas = [event["delta"]["type"] for event in found if event["type"] == "content_block_delta"]
    assert deltas == ["thinking_delta", "text_delta", "text_delta", "input_json_delta"]
    assert [e["index"] for e in found if e["type"] == "content_block_start"] == [0, 1, 2]
    assert gateway.answers[0].num_closed == 1


def test_thoughts_are_left_out_if_thinking_is_disabled() -> None:
    gateway = FakeGateway()
    gateway.says(Reasoning("hm"), Text("a"))
    off = {"type": "disabled"}
    found = events(call(gateway, stream=True, thinking=off).body)
    whole = json.loads(call(gateway, thinking=off).body)  # type: ignore[arg-type]
    assert [e["content_block"]["type"] for e in found if "content_block" in e] == ["text"]
    assert [block["type"] for block in whole["content"]] == ["text"]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"), (401, "authentication_error"), (403, "permission_error"),
        (404, "not_found_error"), (405, "invalid_request_error"), (413, "request_too_large"),
        (429, "rate_limit_error"), (500, "api_error"), (503, "overloaded_error"),
    ],
)  # fmt: skip
def test_an_error_has_its_type_by_its_status(status: int, kind: str) -> None:
    error = Anthropic().error(RequestRefusal(status, "because", param="stop"), "req_1")
    assert json.loads(error.body) == {  # type: ignore[arg-type]
        "type": "error",
        "error": {"type": kind, "message": "because"},
        "request_id": "req_1",
    }
    assert (error.status, error.headers["request-id"]) == (status, "req_1")
    late = Anthropic().late_error(RequestRefusal(status, "because"), "req_1")
    assert late.startswith(b"event: error\ndata: {")
    assert late.endswith(b"\n\n")


def test_an_error_names_the_field_as_the_client_did() -> None:
    gateway = FakeGateway()
    gateway.refusal = RequestRefusal(400, "stop[0] is empty", param="stop[0]")
    with pytest.raises(RequestRefusal, match=r"stop_sequences\[0\] is empty") as caught:
        call(gateway)
    assert caught.value.param == "stop_sequences[0]"


SCRIPT: Sequence[Part] = (
    Reasoning("let me think"),
    Text("I will look, twice. "),
    ToolCall(0, "look"),
    Arguments(0, '{"path": "/tmp"}'),
    ToolCall(1, "look"),
    Arguments(1, '{"deep": [1, 2]}'),
    Text("Done."),
)


def split(parts: Sequence[Part], cuts: Sequence[int]) -> list[list[Part]]:
    """The same parts in deltas that are cut anywhere, also within a part's text."""
    pieces: list[Part] = []
    for part in parts:
        if isinstance(part, ToolCall):
            pieces.append(part)
        else:
            pieces += [part._replace(text=letter) for letter in part.text]
    deltas: list[list[Part]] = [[]]
    for at, piece in enumerate(pieces):
        if at in cuts:
            deltas.append([])
        deltas[-1].append(piece)
    return deltas


def accumulated(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Blocks as a client puts them together."""
    blocks: list[dict[str, Any]] = []
    for event in found:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append({**event["content_block"], "said": "", "is_open": True})
        elif event["type"] == "content_block_delta":
            assert blocks[event["index"]]["is_open"]
            kind = event["delta"].pop("type")
            blocks[-1]["said"] += event["delta"][next(iter(event["delta"]))]
            assert kind.split("_")[0] in ("text", "thinking", "input")
        elif event["type"] == "content_block_stop":
            blocks[event["index"]]["is_open"] = False
    assert not any(block["is_open"] for block in blocks)
    return blocks


@campaign
@given(cuts=st.lists(st.integers(0, 90), max_size=8))
def test_where_an_answer_is_cut_does_not_matter(cuts: list[int]) -> None:
    gateway = FakeGateway()
    answer = asyncio.run(gateway.chat(ASK, request("POST", "/")))
    writer = Events(answer, thinks=True)
    body = writer.opening() + b"".join(writer.encode_parts(parts) for parts in split(SCRIPT, cuts))
    body += writer.closing(gateway.deltas[-1], is_context_full=False)
    blocks = accumulated(events(body))
    assert [(block["type"], block["said"]) for block in blocks] == [
        ("thinking", "let me think"),
        ("text", "I will look, twice. "),
        ("tool_use", '{"path": "/tmp"}'),
        ("tool_use", '{"deep": [1, 2]}'),
        ("text", "Done."),
    ]
