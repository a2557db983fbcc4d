"""What clients of text-generation-inference read."""

import asyncio
import json

import pytest
from gatewayd_hooks.parsing import Text
from gatewayd_hooks.protocols import Refusal
from gatewayd_hooks.testing.fake_gateway import FakeGateway, request

from gatewayd_proto_tgi.config import TgiSettings
from gatewayd_proto_tgi.strategy import TgiProtocol


def answer(gateway: FakeGateway, path: str, **fields: object) -> bytes:
    async def read() -> bytes:
        handlers = {route.path: route.handler for route in protocol.routes(gateway)}
        response = await handlers[path](request("POST", path, json.dumps(fields).encode()))
        if isinstance(response.body, bytes):
            return response.body
        return b"".join([piece async for piece in response.body])

    protocol = TgiProtocol(TgiSettings())
    return asyncio.run(read())


@pytest.mark.parametrize(
    ("reason", "stop", "expected"),
    [("length", None, "length"), ("stop", None, "eos_token"), ("stop", "x", "stop_sequence")],
)
def test_both_ways_tell_the_same(reason: str, stop: str | None, expected: str) -> None:
    gateway = FakeGateway()
    gateway.says(Text("a"), Text("b"), finish_reason=reason, stop=stop)
    whole = json.loads(answer(gateway, "/generate", inputs="?"))
    events = answer(gateway, "/generate_stream", inputs="?").decode().split("\n\n")[:-1]
    pieces = [json.loads(event.removeprefix("data:")) for event in events]
    assert whole["generated_text"] == pieces[-1]["generated_text"] == "ab"
    assert whole["details"] == pieces[-1]["details"]
    assert whole["details"]["finish_reason"] == expected
    assert [piece["token"]["text"] for piece in pieces] == ["a", "b", ""]


def test_an_answer_is_greedy_unless_sampling_is_asked_for() -> None:
    gateway = FakeGateway()
    answer(gateway, "/generate", inputs="?")
    answer(gateway, "/generate", inputs="?", parameters={"do_sample": True, "max_new_tokens": 3})
    first, second = gateway.bodies
    assert (first["temperature"], first["max_tokens"]) == (0, 100)
    assert ("temperature" in second, second["max_tokens"]) == (False, 3)


def test_no_text_is_refused() -> None:
    with pytest.raises(Refusal, match="inputs must be a string"):
        answer(FakeGateway(), "/generate")
