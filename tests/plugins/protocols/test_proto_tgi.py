"""Generate API of text-generation-inference: request conversion, answers and events."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from huggingface_hub import (
    TextGenerationInput,
    TextGenerationInputGenerateParameters,
    TextGenerationInputGrammarType,
    TextGenerationOutput,
    TextGenerationOutputDetails,
    TextGenerationOutputToken,
    TextGenerationStreamOutput,
    TextGenerationStreamOutputStreamDetails,
)

from gatewayd_hooks.parsing import Text
from gatewayd_hooks.protocols import AnswerToken, Delta, HttpResponse, RequestRefusal
from gatewayd_hooks.testing.fake_gateway import FakeGateway, request
from gatewayd_proto_tgi.config import TgiConfig
from gatewayd_proto_tgi.requests import RENAMED, convert
from gatewayd_proto_tgi.strategy import Tgi
from gatewayd_proto_tgi.tables import (
    TgiCompatRequest,
    TgiGenerateRequest,
    TgiGrammar,
    TgiParameters,
)

GREEDY = {"temperature": 0.0, "max_tokens": 100, "include_stop_str_in_output": True}


def body(**parameters: Any) -> dict[str, Any]:
    fields = {"inputs": "hi", "parameters": parameters}
    return convert(fields, TgiGenerateRequest, default_tokens=100).body


def call(gateway: FakeGateway, path: str, **fields: Any) -> HttpResponse:
    async def read() -> HttpResponse:
        asked = request("POST", path, json.dumps({"inputs": "hi", **fields}).encode())
        response = await handlers["POST", path](asked)
        if isinstance(response.body, bytes):
            return response
        text = b"".join([piece async for piece in response.body])
        return HttpResponse(text, content_type=response.content_type)

    routes = Tgi(TgiConfig()).routes(gateway)
    handlers = {(route.method, route.path): route.handler for route in routes}
    return asyncio.run(read())


def answer(gateway: FakeGateway, **parameters: Any) -> dict[str, Any]:
    response = call(gateway, "/generate", parameters=parameters)
    assert isinstance(response.body, bytes)
    found: dict[str, Any] = json.loads(response.body)
    return found


def events(gateway: FakeGateway, **parameters: Any) -> list[dict[str, Any]]:
    response = call(gateway, "/generate_stream", parameters=parameters)
    assert (response.content_type, type(response.body)) == ("text/event-stream", bytes)
    assert isinstance(response.body, bytes)
    *whole, rest = response.body.decode().split("\n\n")
    assert rest == ""
    return [json.loads(event.removeprefix("data: ")) for event in whole]


def refusal(**fields: Any) -> RequestRefusal:
    with pytest.raises(RequestRefusal) as caught:
        call(FakeGateway(), "/generate", **fields)
    return caught.value


def test_a_request_without_parameters_is_greedy() -> None:
    assert body() == {"prompt": "hi", "stream": False, **GREEDY}


@pytest.mark.parametrize(
    ("parameters", "temperature"),
    [
        ({"do_sample": True}, 1.0),
        ({"temperature": 0.5}, 0.5),
        ({"temperature": 1.0}, 0.0),
        ({"temperature": 1.0, "do_sample": True}, 1.0),
        ({"temperature": 0, "do_sample": True}, 0.0),
        ({"top_k": 5}, 1.0),
        ({"top_p": 0.9}, 1.0),
        ({"top_p": 1.0}, 0.0),
        ({"repetition_penalty": 1.2}, 0.0),
    ],
)
def test_parameters_of_sampling_imply_it(parameters: Any, temperature: float) -> None:
    found = body(**parameters)
    assert found["temperature"] == temperature
    assert ("seed" in found) is (temperature > 0)
    assert body(**parameters, seed=3).get("seed") == (3 if temperature else None)


def test_parameters_have_their_names_in_a_completion() -> None:
    found = body(
        max_new_tokens=5, top_k=3, top_p=0.5, repetition_penalty=1.1, frequency_penalty=0.2,
        stop=["x"], seed=7, details=True, top_n_tokens=2, decoder_input_details=True, truncate=4,
    )  # fmt: skip
    assert found == {
        "prompt": "hi", "stream": False, "max_tokens": 5, "temperature": 1.0, "top_k": 3,
        "top_p": 0.5, "repetition_penalty": 1.1, "frequency_penalty": 0.2, "stop": ["x"],
        "seed": 7, "include_stop_str_in_output": True, "logprobs": 2, "return_token_ids": True,
        "prompt_logprobs": 0, "truncate_prompt_tokens": 4,
    }  # fmt: skip
    assert set(RENAMED) >= set(found) - {"stream", "include_stop_str_in_output", "return_token_ids"}


@pytest.mark.parametrize(
    ("grammar", "expected"),
    [
        ({"type": "json", "value": {"type": "object"}}, {"json": {"type": "object"}}),
        ({"type": "json", "value": "{}"}, {"json": "{}"}),
        ({"type": "regex", "value": "a+"}, {"regex": "a+"}),
        (
            {"type": "json_schema", "value": {"name": "n", "schema": {"type": "object"}}},
            {"json": {"type": "object"}},
        ),
    ],
)
def test_a_grammar_constrains_the_output(grammar: Any, expected: Any) -> None:
    assert body(grammar=grammar)["structured_outputs"] == expected


@pytest.mark.parametrize(
    ("parameters", "param"),
    [
        ({"typical_p": 0.9}, "typical_p"),
        ({"truncate": 0}, "truncate"),
        ({"watermark": True}, "watermark"),
        ({"adapter_id": "a"}, "adapter_id"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"best_of": 2}, "best_of"),
        ({"best_of": 2, "do_sample": True, "seed": 1}, "best_of"),
        ({"decoder_input_details": True}, "decoder_input_details"),
        ({"grammar": {"type": "regex", "value": {}}}, "grammar.value"),
        ({"grammar": {"type": "json_schema", "value": {}}}, "grammar.value"),
        ({"grammar": {"type": "xml", "value": "x"}}, "grammar.type"),
        ({"stop": "x"}, "stop"),
    ],
)
def test_what_cannot_be_done_is_refused_by_its_name(parameters: Any, param: str) -> None:
    found = refusal(parameters=parameters)
    assert (found.status, found.param) == (400, f"parameters.{param}")


@pytest.mark.parametrize(
    ("path", "parameters"),
    [
        ("/generate_stream", {"best_of": 2, "do_sample": True}),
        ("/generate_stream", {"details": True, "decoder_input_details": True}),
    ],
)
def test_a_stream_has_no_prompt_and_one_answer(path: str, parameters: Any) -> None:
    with pytest.raises(RequestRefusal, match="for a stream"):
        call(FakeGateway(), path, parameters=parameters)


def test_values_that_ask_for_nothing_are_accepted() -> None:
    neutral = {"typical_p": 1.0, "watermark": False, "truncate": None, "adapter_id": None}
    assert body(**neutral) == body()


def test_refusals_of_a_completion_name_the_clients_field() -> None:
    gateway = FakeGateway()
    for ours, theirs in [("max_tokens", "parameters.max_new_tokens"), ("prompt", "inputs")]:
        gateway.refusal = RequestRefusal(400, f"{ours} is 9", param=ours)
        with pytest.raises(RequestRefusal, match=f"^{theirs} is 9$") as caught:
            answer(gateway, max_new_tokens=9)
        assert caught.value.param == theirs


def test_the_default_number_of_tokens_is_reduced_to_the_context() -> None:
    gateway = FakeGateway()
    gateway.refusal = RequestRefusal(
        400, "too many", code="context_length_exceeded", param="max_tokens"
    )
    for parameters, tries in [({}, 2), ({"max_new_tokens": 100}, 1)]:
        gateway.bodies.clear()
        with pytest.raises(RequestRefusal):
            answer(gateway, **parameters)
        assert ["max_tokens" in body for body in gateway.bodies] == [True, False][:tries]


@pytest.mark.parametrize(
    ("reason", "stop", "expected"),
    [("length", None, "length"), ("stop", None, "eos_token"), ("stop", "x", "stop_sequence")],
)
def test_streams_and_answers_say_the_same(reason: str, stop: str | None, expected: str) -> None:
    gateway = FakeGateway()
    gateway.says(Text("a"), Text("bc"), finish_reason=reason, stop=stop)
    whole, parts = answer(gateway, details=True), events(gateway)
    assert whole["generated_text"] == parts[-1]["generated_text"] == "abc"
    assert [part["index"] for part in parts] == [1, 2, 3]
    assert [part["token"]["text"] for part in parts] == ["a", "bc", ""]
    assert [part["token"] for part in parts[:-1]] == whole["details"]["tokens"]
    assert all(part["details"] is part["generated_text"] is None for part in parts[:-1])
    assert whole["details"]["finish_reason"] == expected
    assert parts[-1]["details"] == {
        "finish_reason": expected, "generated_tokens": 5, "seed": None, "input_length": 12,
    }  # fmt: skip


def test_a_delta_of_several_tokens_is_an_event_for_each() -> None:
    gateway = FakeGateway()
    top = [AnswerToken(3, "c", -0.1), AnswerToken(4, "d", -2.0)]
    tokens = [
        AnswerToken(1, "a", -0.5, top=top), AnswerToken(2, "<end>", -0.2, is_special=True),
    ]  # fmt: skip
    gateway.deltas = [Delta(0, (Text("a"),), "stop", tokens=tokens)]
    first, last = events(gateway, top_n_tokens=2)
    assert first["token"] == {"id": 1, "text": "a", "logprob": -0.5, "special": False}
    assert [one["id"] for one in first["top_tokens"]] == [3, 4]
    assert last["token"]["special"] is True
    assert last["generated_text"] == "a"
    assert "top_tokens" not in events(gateway)[0]


def test_the_most_likely_of_several_answers_is_returned() -> None:
    gateway = FakeGateway()
    gateway.deltas = [
        Delta(0, (Text("bad"),), "length", tokens=[AnswerToken(1, "bad", -3.0)]),
        Delta(1, (Text("good"),), "stop", tokens=[AnswerToken(2, "good", -1.0)] * 2),
    ]
    found = answer(gateway, best_of=2, do_sample=True, details=True, return_full_text=True)
    assert found["generated_text"] == "higood"
    assert found["details"]["generated_tokens"] == 2
    (other,) = found["details"]["best_of_sequences"]
    assert (other["generated_text"], other["finish_reason"]) == ("hibad", "length")
    assert gateway.bodies[0]["n"] == 2


def test_the_prompt_is_in_the_details_if_requested() -> None:
    gateway = FakeGateway()
    gateway.prompt = [AnswerToken(5, "h", None), AnswerToken(6, "i", -1.5)]
    found = answer(gateway, details=True, decoder_input_details=True)["details"]["prefill"]
    assert found == [
        {"id": 5, "text": "h", "logprob": None}, {"id": 6, "text": "i", "logprob": -1.5},
    ]  # fmt: skip
    assert answer(gateway, details=True)["details"]["prefill"] == []
    assert set(answer(gateway)) == {"generated_text"}


def test_the_root_answers_a_list_or_a_stream() -> None:
    response = call(FakeGateway(), "/")
    assert isinstance(response.body, bytes)
    assert json.loads(response.body) == [{"generated_text": "Hello, world!"}]
    streamed = call(FakeGateway(), "/", stream=True)
    assert isinstance(streamed.body, bytes)
    assert streamed.body.startswith(b'data: {"index":1,')


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, (400, "validation")),
        (401, (401, "authentication")),
        (404, (404, "validation")),
        (429, (429, "overloaded")),
        (503, (503, "overloaded")),
        (500, (500, "generation")),
    ],
)
def test_errors_have_a_type(status: int, expected: tuple[int, str]) -> None:
    response = Tgi(TgiConfig()).error(RequestRefusal(status, "why"), "req_1")
    assert isinstance(response.body, bytes)
    kind = {"error": "why", "error_type": expected[1]}
    assert (response.status, json.loads(response.body)) == (expected[0], kind)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (TextGenerationInput, TgiCompatRequest),
        (TextGenerationInputGenerateParameters, TgiParameters),
        (TextGenerationInputGrammarType, TgiGrammar),
    ],
)
def test_every_field_of_the_client_is_in_the_tables(theirs: Any, ours: Any) -> None:
    assert set(theirs.__dataclass_fields__) <= ours.known


def test_answers_have_every_field_that_the_client_requires() -> None:
    gateway = FakeGateway()
    whole = answer(gateway, details=True, top_n_tokens=1)
    last = events(gateway)[-1]
    for kind, found in [
        (TextGenerationOutput, whole),
        (TextGenerationOutputDetails, whole["details"] | {"best_of_sequences": None}),
        (TextGenerationOutputToken, whole["details"]["tokens"][0]),
        (TextGenerationStreamOutput, last | {"top_tokens": None}),
        (TextGenerationStreamOutputStreamDetails, last["details"]),
    ]:
        assert set(found) == set(vars(kind)["__dataclass_fields__"])
