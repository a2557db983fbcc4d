"""What clients of llama.cpp's server read."""

import asyncio
import json

import pytest
from gatewayd_hooks.parsing import Text
from gatewayd_hooks.protocols import Refusal
from gatewayd_hooks.testing.fake_gateway import FakeGateway, request

from gatewayd_proto_llamacpp.config import LlamaCppSettings
from gatewayd_proto_llamacpp.strategy import LlamaCpp


def answer(gateway: FakeGateway, **fields: object) -> bytes:
    async def read() -> bytes:
        handlers = {route.path: route.handler for route in protocol.routes(gateway)}
        body = json.dumps(fields).encode()
        response = await handlers["/completion"](request("POST", "/completion", body))
        if isinstance(response.body, bytes):
            return response.body
        return b"".join([piece async for piece in response.body])

    protocol = LlamaCpp(LlamaCppSettings())
    return asyncio.run(read())


@pytest.mark.parametrize(
    ("reason", "stop", "expected"),
    [("length", None, "limit"), ("stop", None, "eos"), ("stop", "x", "word")],
)
def test_both_ways_tell_the_same(reason: str, stop: str | None, expected: str) -> None:
    gateway = FakeGateway()
    gateway.says(Text("a"), Text("b"), finish_reason=reason, stop=stop)
    whole = json.loads(answer(gateway, prompt="?"))
    events = answer(gateway, prompt="?", stream=True).decode().split("\n\n")[:-1]
    pieces = [json.loads(event.removeprefix("data: ")) for event in events]
    assert "".join(piece["content"] for piece in pieces) == whole["content"] == "ab"
    assert {**pieces[-1], "content": "ab"} == whole
    assert (whole["stop_type"], whole["stopping_word"]) == (expected, stop or "")


def test_fields_have_their_names_in_a_completion() -> None:
    gateway = FakeGateway()
    answer(gateway, prompt="?", repeat_penalty=1.5)
    answer(gateway, prompt="?", n_predict=-1)
    first, second = gateway.bodies
    assert (first["repetition_penalty"], first["max_tokens"]) == (1.5, 256)
    assert "max_tokens" not in second


@pytest.mark.parametrize("fields", [{}, {"prompt": [1]}, {"prompt": "?", "n_predict": "x"}])
def test_what_is_no_request_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(Refusal, match="must be"):
        answer(FakeGateway(), **fields)
