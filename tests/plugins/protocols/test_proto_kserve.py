"""KServe's messages: wire format, request conversion, tensors and answers."""

from __future__ import annotations

import json
import struct
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("grpc")
pytest.importorskip("google.protobuf")

from gatewayd_hooks.protocols import RequestRefusal
from gatewayd_proto_kserve import messages
from gatewayd_proto_kserve.answers import streamed, whole
from gatewayd_proto_kserve.messages import InferRequest, InferResponse, message_class
from gatewayd_proto_kserve.requests import PARAMETERS, InferCall, convert
from gatewayd_proto_kserve.service import _address, _refusal
from gatewayd_proto_kserve.tensors import add_text, read_inputs

CALL = InferCall({}, is_stream=True, is_raw=False, id="a", model="nano", ignored=["mine"])


def asked(text: str = "hi", *, sampling: str | None = None, **parameters: Any) -> Any:
    request = InferRequest(model_name="nano", id="a")
    tensor = request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(text.encode())
    if sampling is not None:
        tensor = request.inputs.add(name="sampling_parameters", datatype="BYTES", shape=[1])
        tensor.contents.bytes_contents.append(sampling.encode())
    kinds = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
    for name, value in parameters.items():
        setattr(request.parameters[name], kinds[type(value)], value)
    return request


def body(*given: Any, can_stream: bool = False, **parameters: Any) -> dict[str, Any]:
    return convert(asked(*given, **parameters), can_stream=can_stream).body


def refused(request: Any, *, can_stream: bool = False) -> RequestRefusal:
    with pytest.raises(RequestRefusal) as caught:
        convert(request, can_stream=can_stream)
    return caught.value


def described(descriptor: Any) -> Iterator[Any]:
    yield (
        descriptor.full_name,
        descriptor.GetOptions().map_entry,
        [
            (
                *(field.name, field.number, field.type, field.is_repeated),
                field.message_type and field.message_type.full_name,
                field.containing_oneof and field.containing_oneof.name,
            )
            for field in descriptor.fields
        ],
    )
    for nested in descriptor.nested_types:
        yield from described(nested)


def test_messages_are_those_of_tritons_client() -> None:
    """Its module is generated from the official definition, in a pool of its own."""
    official = pytest.importorskip("tritonclient.grpc.service_pb2").DESCRIPTOR
    names = [line.partition(":")[0] for line in messages._MESSAGES.strip().splitlines()]
    outer = [name for name in names if "." not in name]
    for name in outer:
        ours = sorted(described(message_class(name).DESCRIPTOR))
        assert ours == sorted(described(official.message_types_by_name[name]))
    service = official.services_by_name["GRPCInferenceService"]
    assert service.full_name == messages.SERVICE
    assert len(outer) == 15


def test_a_request_is_a_completion() -> None:
    assert body() == {"model": "nano", "prompt": "hi", "stream": False}
    assert body(can_stream=True) == {
        **{"model": "nano", "prompt": "hi", "stream": True},
        "stream_options": {"include_usage": True},
    }
    assert not body(can_stream=True, stream=False)["stream"]
    assert not body(can_stream=True, stream="false")["stream"]


def test_parameters_have_their_types() -> None:
    found = body(max_tokens=5, temperature=0.5, ignore_eos=True, stop="x", seed="7", top_p="0.25")
    expected = {"max_tokens": 5, "temperature": 0.5, "ignore_eos": True, "stop": "x", "seed": 7}
    assert found.items() >= {**expected, "top_p": 0.25}.items()
    assert type(found["seed"]) is int
    sampling = {"temperature": "0.1", "stop": ["a", "b"], "ignore_eos": "True", "top_k": 4}
    found = body(sampling=json.dumps(sampling), top_k=3)
    expected = {"temperature": 0.1, "stop": ["a", "b"], "ignore_eos": True, "top_k": 3}
    assert found.items() >= expected.items()


def test_what_would_change_the_answers_format_is_ignored() -> None:
    call = convert(
        asked(n=2, echo=True, prompt="other", sampling='{"logprobs": 1, "model": "x"}'),
        can_stream=False,
    )
    assert call.body == {"model": "nano", "prompt": "hi", "stream": False}
    assert call.ignored == ["echo", "logprobs", "model", "n", "prompt"]
    assert not {"n", "best_of", "echo", "logprobs", "stream_options", "model"} & PARAMETERS


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (asked(temperature=float("nan")), "temperature is nan; it must be a finite number"),
        (asked(temperature="inf"), "temperature is 'inf'"),
        (asked(max_tokens="9" * 5000), "max_tokens is '999"),
        (asked(max_tokens="1.5"), "max_tokens is '1.5'; it must be an integer"),
        (asked(stream=True), "stream is true"),
        (asked(stream=3), "stream is 3; it must be a boolean"),
        (asked(sampling="{"), "sampling_parameters: the text is not JSON"),
        (asked(sampling="[]"), "sampling_parameters: the text must be a JSON object"),
        (asked(sampling='{"seed":1,"seed":2}'), "sampling_parameters: the key 'seed' is repeated"),
        (asked(sampling='{"stop":' + "[" * 2000), "sampling_parameters: "),
        (InferRequest(model_name="nano"), "text_input is missing"),
        (InferRequest(), "model_name is empty"),
        (InferRequest(model_version="7"), "there is no version '7'"),
        (InferRequest(model_name="nano", outputs=[{"name": "logits"}]), "outputs names 'logits'"),
    ],
)
def test_a_bad_request_is_refused(request_: Any, message: str) -> None:
    assert refused(request_).message.startswith(message)


def test_a_parameter_needs_a_value() -> None:
    request = asked()
    _ = request.parameters["top_p"]
    assert refused(request).message == "parameters.top_p has no value"


@given(text=st.text(), is_raw=st.booleans())
def test_a_text_comes_back(text: str, is_raw: bool) -> None:
    response = InferResponse()
    add_text(response, "text_input", text, is_raw=is_raw)
    request = InferRequest()
    (output,) = response.outputs
    request.inputs.add().ParseFromString(output.SerializeToString())
    request.raw_input_contents.extend(response.raw_output_contents)
    assert len(response.raw_output_contents) == is_raw
    assert read_inputs(request, {"text_input": "BYTES"}) == {"text_input": text}


@given(
    raw=st.lists(st.binary(max_size=12), max_size=2),
    shape=st.lists(st.integers(-2, 2), max_size=3),
    datatype=st.sampled_from(["BYTES", "BOOL", "FP32", ""]),
    contents=st.lists(st.binary(max_size=2), max_size=2),
)
def test_any_tensor_is_read_or_refused(
    raw: list[bytes], shape: list[int], datatype: str, contents: list[bytes]
) -> None:
    request = InferRequest(model_name="nano")
    tensor = request.inputs.add(name="text_input", datatype=datatype, shape=shape)
    tensor.contents.bytes_contents.extend(contents)
    request.raw_input_contents.extend(raw)
    is_good = (datatype, {*shape} | {1}, raw, len(contents)) == ("BYTES", {1}, [], 1)
    if is_good and contents[0].decode(errors="ignore").encode() == contents[0]:
        assert convert(request, can_stream=True).body["prompt"].encode() == contents[0]
    else:
        assert refused(request, can_stream=True).status == 400


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"\x01\x00\x00", "text_input is cut off"),
        (struct.pack("<I", 2**32 - 1) + b"a", "text_input is cut off"),
        (struct.pack("<I", 1) + b"\xff", "text_input is not UTF-8 at byte 0"),
        ((struct.pack("<I", 1) + b"a") * 2, "text_input has 2 elements"),
        (b"\x00" * 4_000_000, "text_input has 2 elements"),
        (b"", "text_input has 0 elements"),
    ],
)
def test_bad_raw_contents_are_refused(raw: bytes, message: str) -> None:
    request = InferRequest(model_name="nano", raw_input_contents=[raw])
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    assert refused(request).message.startswith(message)


def test_raw_contents_are_for_all_inputs_or_none() -> None:
    request = asked(sampling="{}")
    request.raw_input_contents.append(b"")
    assert refused(request).message.startswith("raw_input_contents has 1 entries")
    request.raw_input_contents.append(b"")
    assert "both contents and raw contents" in refused(request).message
    repeated = asked()
    repeated.inputs.append(repeated.inputs[0])
    assert refused(repeated).message.startswith("text_input is repeated")


def told(response: Any) -> tuple[str, dict[str, Any]]:
    (output,) = response.outputs
    (data,) = output.contents.bytes_contents
    given = response.parameters
    values = {name: getattr(one, one.WhichOneof("parameter_choice")) for name, one in given.items()}
    return data.decode(), values


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


EVENTS = [
    event(model="nano", choices=[{"text": "He", "finish_reason": None}]),
    b": ping\n\n",
    event(model="nano", choices=[{"text": "llo", "finish_reason": "stop"}]),
    event(model="nano", choices=[], usage={"prompt_tokens": 3, "completion_tokens": 2}),
    b"data: [DONE]\n\n",
]


async def responses(pieces: list[bytes]) -> list[Any]:
    async def read() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    return [told(one) async for one in streamed(CALL, read(), "user")]


@pytest.mark.parametrize("size", [1, 2, 7, 10_000])
async def test_a_stream_may_be_cut_anywhere(size: int) -> None:
    data = b"".join(EVENTS)
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    final = {
        **{"finish_reason": "stop", "prompt_tokens": 3, "completion_tokens": 2},
        **{"ignored_parameters": "mine, user", "triton_final_response": True},
    }
    assert await responses(pieces) == [("He", {}), ("llo", {}), ("", final)]


async def test_an_error_in_a_stream_is_raised() -> None:
    failure = event(error={"message": "the engine was lost", "code": "engine_lost"})
    with pytest.raises(RequestRefusal, match="the engine was lost"):
        await responses([EVENTS[0], failure])


def test_a_whole_answer_has_its_counts() -> None:
    completion = {
        "choices": [{"text": "Hello", "finish_reason": "length"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    }
    response = whole(CALL, json.dumps(completion).encode(), "", is_final=False)
    assert (response.id, response.model_name) == ("a", "nano")
    assert told(response) == (
        "Hello",
        {
            **{"finish_reason": "length", "prompt_tokens": 3, "completion_tokens": 2},
            "ignored_parameters": "mine",
        },
    )


def test_errors_of_both_formats_are_understood() -> None:
    ours = json.dumps({"error": {"message": "no", "code": "c", "param": "seed"}}).encode()
    found = _refusal(429, ours, {"retry-after": "3"})
    assert (found.message, found.code, found.param, found.retry_after) == ("no", "c", "seed", 3)
    assert _refusal(404, b'{"error":"there is none"}', {}).message == "there is none"
    assert _refusal(502, b"<html>", {}).message == "the gateway answered with status 502"


def test_addresses_of_peers_are_read() -> None:
    assert _address("ipv4:192.0.2.1:50000") == "192.0.2.1"
    assert _address("ipv6:%5B2001:db8::1%5D:50000") == "2001:db8::1"
    assert _address("ipv6:[::1]:50000") == "::1"
    assert _address("unix:/run/socket") is None
