"""Calls of protocols to the gateway: as over HTTP, without a connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gatewayd.text.text_model import TextModel
from gatewayd_hooks.protocols import Gateway as Served
from gatewayd_hooks.protocols import Route
from tests.gatewayd.fake_fleet import FakeFleet, hangs, hangs_after, says
from tests.gatewayd.gateway import Gateway, running, until
from tests.gatewayd.http.protocols.plain_protocol import Plain

WORDS = "hello to all of you"
ASKED = {"model": "nano", "prompt": "hi", "max_tokens": 50}
JSON = {"content-type": "application/json"}
KEY = "k" * 20


class Caller(Plain):
    """A protocol that has been given its gateway."""

    served: Served

    def routes(self, gateway: Served) -> Sequence[Route]:
        self.served = gateway
        return super().routes(gateway)


@asynccontextmanager
async def calling(
    text: TextModel, fleet: FakeFleet, **options: Any
) -> AsyncIterator[tuple[Gateway, Served]]:
    protocols: Any = [("plain", caller := Caller())]
    async with running(text, fleet, protocols=protocols, **options) as gateway:
        yield gateway, caller.served


def completion(served: Served, **more: Any) -> Any:
    body = json.dumps({**ASKED, **more}).encode()
    return served.call("POST", "/v1/completions", headers=JSON, body=body)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_is_that_of_the_route(text: TextModel, stream: bool) -> None:
    fleet = FakeFleet(says(text.tokenizer.encode(WORDS)))
    async with calling(text, fleet) as (gateway, served):
        over_http = await gateway.http.post("/v1/completions", json={**ASKED, "stream": stream})
        async with completion(served, stream=stream) as answer:
            body = (await answer.read()).decode()
        finished = await gateway.until_finished(2)
        metrics = (await gateway.http.get("/metrics")).text

    def told(body: str) -> tuple[str, Any]:
        events = [line.removeprefix("data: ") for line in body.splitlines() if line]
        assert (events[-1] == "[DONE]") is stream
        choices = [json.loads(one)["choices"][0] for one in events if one != "[DONE]"]
        return "".join(one["text"] for one in choices), choices[-1]["finish_reason"]

    assert told(body) == told(over_http.text) == (WORDS, "stop")
    assert answer.status == 200
    assert answer.headers["content-type"] == over_http.headers["content-type"]
    assert answer.headers["x-request-id"] == finished[1].request_id
    assert 'endpoint="/v1/completions",method="POST",status="200"} 2.0' in metrics


@pytest.mark.parametrize("has_begun", [False, True])
async def test_leaving_a_call_cancels_it(text: TextModel, has_begun: bool) -> None:
    """Also by the cancellation of the caller, while it waits for the beginning of an answer."""
    fleet = FakeFleet(hangs_after(text.tokenizer.encode(WORDS)) if has_begun else hangs)
    pieces = list[bytes]()

    async def ask(served: Served) -> None:
        async with completion(served, stream=True) as answer:
            async for piece in answer.body:
                pieces.append(piece)
                return

    async with calling(text, fleet) as (gateway, served):
        asking = asyncio.create_task(ask(served))
        if has_begun:
            await asking
        else:
            await until(lambda: fleet.jobs)
            asking.cancel()
        finished = await gateway.until_finished()
    assert [one.outcome for one in finished] == ["abort"]
    assert len(pieces) == has_begun


async def test_a_caller_that_reads_slowly_holds_up_the_writer(text: TextModel) -> None:
    protocols: Any = [("plain", caller := Caller())]
    async with running(text, FakeFleet(), protocols=protocols):
        async with caller.served.call("POST", "/plain/many", headers={}) as answer:
            assert await anext(answer.body)
            for _ in range(50):
                await asyncio.sleep(0)
            pulled = caller.pulled
        await until(lambda: "many" in caller.ended)
    assert 0 < pulled < 5


async def test_keys_are_checked(text: TextModel) -> None:
    async with calling(text, FakeFleet(), api_key=KEY) as (_, served):
        statuses = []
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Bearer {KEY}"}):
            async with served.call("GET", "/v1/models?after=x", headers=headers) as answer:
                statuses.append(answer.status)
                body = json.loads(await answer.read())
        async with served.call("GET", "/livez", headers={}) as answer:
            statuses.append(answer.status)
    assert statuses == [401, 401, 200, 200]
    assert body["data"][0]["id"] == "nano"


async def test_wrong_keys_are_those_of_a_clients_address(text: TextModel) -> None:
    wrong = {"authorization": "Bearer wrong"}
    async with calling(text, FakeFleet(), api_key=KEY) as (_, served):

        async def status(client: str) -> int:
            async with served.call("GET", "/version", headers=wrong, client=client) as answer:
                return answer.status

        found = [await status("192.0.2.1") for _ in range(40)]
        other = await status("192.0.2.2")
    assert found[0] == other == 401
    assert found[-1] == 429


async def test_a_target_is_decoded_as_that_of_a_request_line(text: TextModel) -> None:
    async with calling(text, FakeFleet()) as (_, served):
        async with served.call("GET", "/v1/models/a%20b%3Fc", headers={}) as answer:
            body = json.loads(await answer.read())
        async with served.call("GET", "/readyz?verbose=1", headers={}) as answer:
            details = json.loads(await answer.read())
    assert "'a b?c'" in body["error"]["message"]
    assert "replicas" in details


@pytest.mark.parametrize(
    "headers",
    [{"host": "a"}, {"content-length": "3"}, {"X": "a"}, {"a b": "c"}, {"a": "b\r\nc: d"}],
)
async def test_an_invalid_header_is_refused(text: TextModel, headers: dict[str, str]) -> None:
    async with calling(text, FakeFleet()) as (_, served):
        with pytest.raises(ValueError, match="cannot be sent"):
            async with served.call("GET", "/livez", headers=headers):
                pass


async def test_an_answer_that_ends_early_is_none(text: TextModel) -> None:
    """As a connection that is closed in the middle of a body."""

    async def cut(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise RuntimeError("lost")

    async with calling(text, FakeFleet()) as (_, served):
        given: Any = served
        given.set_app(cut)
        async with served.call("GET", "/livez", headers={}) as answer:
            with pytest.raises(ConnectionError, match="ends early"):
                await answer.read()


async def test_readiness_is_that_of_a_model(text: TextModel) -> None:
    fleet = FakeFleet()
    async with calling(text, fleet) as (_, served):
        assert served.is_ready("nano")
        fleet.is_ready = False
        assert not served.is_ready("nano")
        fleet.is_ready = True
        assert not served.is_ready("other")
