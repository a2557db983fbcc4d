"""Faults of an upstream: each is one honest answer within its time-out."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import pytest
from aiohttp import web

from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import FakeFleet
from tests.gatewayd.gateway import Gateway, running, until
from tests.gatewayd.upstreams.fake_upstream import (
    USAGE,
    WORDS,
    Answer,
    chunk,
    event,
    fake_upstream,
    hangs,
    leaves,
    refuses,
    says,
    sends,
    stream,
    trickles,
)

CHAT: dict[str, Any] = {"model": "far", "messages": [{"role": "user", "content": "hi"}]}
PATH = "/v1/chat/completions"
KEY = "the-secret-of-the-gateway"


async def ask(gateway: Gateway, **fields: Any) -> httpx.Response:
    return await gateway.http.post(PATH, json={**CHAT, **fields})


async def redirects(request: web.Request) -> web.StreamResponse:
    raise web.HTTPFound("/v1/elsewhere")


DEEP = b"data: " + b'{"choices":' + b"[" * 100_000 + b"\n\n"

FAULTS: list[tuple[Answer, int, str, str]] = [
    (hangs, 504, "upstream_timeout", "first_token_seconds"),
    (trickles, 504, "upstream_timeout", "first_token_seconds"),
    (sends(ends="hangs"), 504, "upstream_timeout", "first_token_seconds"),
    (leaves, 502, "upstream_error", "closed the connection"),
    (sends(ends="cut"), 502, "upstream_error", "broke its answer off"),
    (sends(), 502, "upstream_error", "without a finish reason"),
    (sends(b"data: no JSON\n\n"), 502, "upstream_error", "does not follow its API"),
    (sends(b'data: {"choices": 5}\n\n'), 502, "upstream_error", "does not follow its API"),
    (sends(DEEP), 502, "upstream_error", "does not follow its API"),
    (sends(b"data: " + b"x" * (9 << 20)), 502, "upstream_error", "does not follow its API"),
    (sends(event({"choices": [{"index": 7, "delta": {"content": "a"}}]})), 502, "", "follow"),
    (sends(event({"choices": [], "usage": {"prompt_tokens": -5}})), 502, "", "follow"),
    (sends(event({"error": {"message": "no memory"}})), 502, "upstream_error", "status 500"),
    (refuses(200, {"choices": []}), 502, "upstream_error", "does not follow its API"),
    (refuses(400), 400, "invalid_value", "a reason"),
    (refuses(401), 502, "upstream_refused", "credential"),
    (refuses(403), 502, "upstream_refused", "credential"),
    (refuses(404), 502, "upstream_refused", "does not serve the model"),
    (refuses(429), 503, "upstream_busy", "busy"),
    (refuses(500), 502, "upstream_error", "status 500"),
    (refuses(503), 503, "upstream_busy", "busy"),
    (refuses(500, b"\xff<html>" * 50_000), 502, "upstream_error", "status 500"),
    (redirects, 502, "upstream_error", "status 302"),
]


@pytest.mark.parametrize(("fault", "status", "code", "words"), FAULTS)
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_fault_before_the_first_token_has_its_own_status(
    text: TextModel, fault: Answer, status: int, code: str, words: str, streamed: bool
) -> None:
    async with (
        fake_upstream(fault) as upstream,
        running(text, FakeFleet(), upstreams={"one": upstream.entry()}) as gateway,
    ):
        began = time.monotonic()
        answer = await ask(gateway, stream=streamed)
        assert time.monotonic() - began < 5.0
        error = answer.json()["error"]
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json")
        assert error["code"] == (code or "upstream_error")
        assert words in error["message"]
        assert "one" in error["message"]
        [finished] = await gateway.until_finished()
        assert (finished.outcome, finished.completion_tokens) == ("error", 0)
        fleet = gateway.upstreams[0].fleet
        await until(lambda: not fleet.num_unfinished and not fleet.endpoints.all[0].num_running)


HALF = b"".join(chunk(word) for word in WORDS)


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (sends(HALF, ends="hangs"), 504, "upstream_timeout"),
        (sends(HALF, ends="cut"), 502, "upstream_error"),
        (sends(HALF), 502, "upstream_error"),
        (sends(HALF, b"data: {\n\n"), 502, "upstream_error"),
        (sends(HALF, event({"error": "out of memory"})), 502, "upstream_error"),
    ],
)
async def test_a_fault_after_the_first_token_ends_a_stream_with_an_error(
    text: TextModel, fault: Answer, status: int, code: str
) -> None:
    async with (
        fake_upstream(fault) as upstream,
        running(text, FakeFleet(), upstreams={"one": upstream.entry()}) as gateway,
    ):
        streamed = await ask(gateway, stream=True)
        whole = await ask(gateway)
        # Never a second time: a token was received.
        assert len(upstream.bodies) == 2
    assert streamed.status_code == 200
    assert "Hello" in streamed.text
    assert f'"code":"{code}"' in streamed.text
    assert 'finish_reason":"stop' not in streamed.text
    assert (whole.status_code, whole.json()["error"]["code"]) == (status, code)


async def test_an_answer_without_counts_or_a_proper_end_is_complete(text: TextModel) -> None:
    for ends in ("well", "cut", "hangs"):
        complete = sends(HALF, chunk(reason="length"), ends=ends)
        async with (
            fake_upstream(complete) as upstream,
            running(text, FakeFleet(), upstreams={"one": upstream.entry()}) as gateway,
        ):
            answer = await ask(gateway)
            choice = answer.json()["choices"][0]
            assert (choice["message"]["content"], choice["finish_reason"]) == (
                "Hello there.",
                "length",
            )
            assert answer.json()["usage"]["completion_tokens"] == 3


async def test_a_refused_request_names_the_field_and_no_key(text: TextModel) -> None:
    body = {"error": {"message": f"bad\n{KEY} top_p", "param": "top_p", "code": "too_high"}}
    async with (
        fake_upstream(refuses(400, body), refuses(401, {"error": f"wrong key {KEY}"})) as upstream,
        running(text, FakeFleet(), upstreams={"one": upstream.entry(api_key=KEY)}) as gateway,
    ):
        first, second = await ask(gateway), await ask(gateway)
        assert upstream.headers[0]["authorization"] == f"Bearer {KEY}"
    error = first.json()["error"]
    assert (error["param"], error["code"]) == ("top_p", "too_high")
    assert error["message"] == "the upstream one refuses the request: bad *** top_p"
    assert KEY not in second.text


async def test_a_busy_upstream_says_when_to_come_back(text: TextModel) -> None:
    async with (
        fake_upstream(refuses(429, retry_after="17")) as upstream,
        running(text, FakeFleet(), upstreams={"one": upstream.entry()}) as gateway,
    ):
        answer = await ask(gateway)
    assert answer.headers["retry-after"] == "17"


async def test_servers_without_stream_options_are_asked_without_them(text: TextModel) -> None:
    refusal = refuses(400, {"error": {"message": "unknown field stream_options"}})
    async with (
        fake_upstream(refusal, says) as upstream,
        running(text, FakeFleet(), upstreams={"one": upstream.entry()}) as gateway,
    ):
        answers = [await ask(gateway) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 200]
        asked = ["stream_options" in body for body in upstream.bodies]
    assert asked == [True, False, False]


async def test_connections_are_used_again(text: TextModel) -> None:
    peers = set()

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        peers.add(request.transport.get_extra_info("peername"))
        return await says(request)

    async with (
        fake_upstream(answer) as upstream,
        running(text, FakeFleet(), upstreams={"one": upstream.entry()}) as gateway,
    ):
        for _ in range(3):
            assert (await ask(gateway)).status_code == 200
    # Not always one: the second request may come before the end of the first was read.
    assert len(peers) <= 2


async def test_a_slow_answer_is_read_to_its_end(text: TextModel) -> None:
    """Longer than the time-out of its first token, which each token extends by another."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = await stream(request)
        for _ in range(8):
            await response.write(chunk("on "))
            await asyncio.sleep(0.15)
        await response.write(chunk(reason="stop"))
        return response

    async with (
        fake_upstream(answer) as upstream,
        running(text, FakeFleet(), upstreams={"one": upstream.entry()}) as gateway,
    ):
        answered = await ask(gateway)
    assert answered.json()["choices"][0]["message"]["content"] == "on " * 8


async def test_counts_that_come_after_the_end_are_those_of_the_answer(text: TextModel) -> None:
    late = sends(HALF, chunk(reason="stop"), event({"choices": [], "usage": USAGE}))
    async with (
        fake_upstream(late) as upstream,
        running(text, FakeFleet(), upstreams={"one": upstream.entry()}) as gateway,
    ):
        usage = (await ask(gateway)).json()["usage"]
        [finished] = await gateway.until_finished()
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (11, 3)
    assert (finished.prompt_tokens, finished.cached_tokens) == (11, 4)


@pytest.mark.parametrize("streamed", [False, True])
async def test_output_that_comes_with_the_finish_reason_is_counted_once(
    text: TextModel, streamed: bool
) -> None:
    counts = event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}})
    for more, prompt in ((counts, 5), (b"", None)):
        answer = sends(chunk("a"), chunk("b", "stop"), more)
        async with (
            fake_upstream(answer) as upstream,
            running(text, FakeFleet(), upstreams={"one": upstream.entry()}) as gateway,
        ):
            fields = {"stream": True, "stream_options": {"include_usage": True}} if streamed else {}
            assert '"completion_tokens":2' in (await ask(gateway, **fields)).text
            [finished] = await gateway.until_finished()
        assert finished.completion_tokens == 2
        assert prompt is None or finished.prompt_tokens == prompt


async def test_a_second_request_of_a_strategy_is_not_retried_again(text: TextModel) -> None:
    refusal = refuses(400, {"error": {"message": "unknown field stream_options"}})
    async with (
        fake_upstream(leaves, refusal, leaves, says) as upstream,
        running(text, FakeFleet(), upstreams={"one": upstream.entry()}) as gateway,
    ):
        assert (await ask(gateway)).status_code == 502
        assert len(upstream.bodies) == 3
