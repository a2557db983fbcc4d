"""Faults of an upstream in embeddings: each is one honest answer within its time-out."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx
import pytest
from aiohttp import web

from gatewayd.text.text_model import TextModel
from gatewayd.upstreams import embedding
from tests.gatewayd.fake_fleet import FakeFleet
from tests.gatewayd.gateway import Gateway, running, until
from tests.gatewayd.upstreams.fake_embeddings import Embeds, answers, begins, packed, row
from tests.gatewayd.upstreams.fake_upstream import (
    Answer,
    fake_upstream,
    hangs,
    leaves,
    refuses,
)

PATH = "/v1/embeddings"
BODY: dict[str, Any] = {"model": "far", "input": ["one", "two"]}
GOOD = [row(0, [1.0, 2.0]), row(1, [3.0, 4.0])]
FOLLOW = "does not follow its API"


async def ask(gateway: Gateway, **fields: Any) -> httpx.Response:
    return await gateway.http.post(PATH, json={**BODY, **fields})


def body_of(text: str) -> Answer:
    return begins(text.encode(), ends="well")


FAULTS: list[tuple[Answer, int, str, str]] = [
    (hangs, 504, "upstream_timeout", "first_token_seconds"),
    (begins(ends="hangs"), 504, "upstream_timeout", "between_tokens_seconds"),
    (begins(b'{"data": [', ends="hangs"), 504, "upstream_timeout", "between_tokens_seconds"),
    (begins(b'{"data": [', ends="trickles"), 504, "upstream_timeout", "between_tokens_seconds"),
    (leaves, 502, "upstream_error", "closed the connection"),
    (begins(b'{"data": [', ends="cut"), 502, "upstream_error", "broke its answer off"),
    (refuses(400), 400, "invalid_value", "a reason"),
    (refuses(401), 502, "upstream_refused", "credential"),
    (refuses(404), 502, "upstream_refused", "does not serve the model"),
    (refuses(429), 503, "upstream_busy", "busy"),
    (refuses(500), 502, "upstream_error", "status 500"),
    (refuses(503), 503, "upstream_busy", "busy"),
    (body_of(""), 502, "upstream_error", FOLLOW),
    (body_of("<html>"), 502, "upstream_error", FOLLOW),
    (body_of('{"data": ['), 502, "upstream_error", FOLLOW),
    (body_of('{"data": ' + "[" * 100_000), 502, "upstream_error", FOLLOW),
    (body_of(json.dumps({"error": {"message": "no"}})), 502, "upstream_error", FOLLOW),
    (answers(), 502, "upstream_error", FOLLOW),
    (answers(GOOD[0]), 502, "upstream_error", FOLLOW),
    (answers(*GOOD, row(2, [5.0, 6.0])), 502, "upstream_error", FOLLOW),
    (answers(GOOD[0], GOOD[0]), 502, "upstream_error", FOLLOW),
    (answers(row(1, [1.0]), row(2, [2.0])), 502, "upstream_error", FOLLOW),
    (answers(GOOD[0], {"embedding": [3.0, 4.0]}), 502, "upstream_error", FOLLOW),
    (answers(GOOD[0], row(1, [3.0, 4.0, 5.0])), 502, "upstream_error", FOLLOW),
    (answers(row(0, []), row(1, [])), 502, "upstream_error", FOLLOW),
    (answers(GOOD[0], row(1, [3.0, None])), 502, "upstream_error", FOLLOW),
    (answers(GOOD[0], row(1, ["3", "4"])), 502, "upstream_error", FOLLOW),
    (answers(GOOD[0], row(1, [[3.0, 4.0]])), 502, "upstream_error", FOLLOW),
    (answers(GOOD[0], row(1, {"a": 1})), 502, "upstream_error", FOLLOW),
    (answers(GOOD[0], row(1, [float("nan"), 4.0])), 502, "upstream_error", FOLLOW),
    (answers(GOOD[0], row(1, packed(float("nan"), 4.0))), 502, "upstream_error", "not finite"),
    (answers(GOOD[0], row(1, packed(float("inf"), 4.0))), 502, "upstream_error", "not finite"),
    (answers(GOOD[0], row(1, [1e39, 4.0])), 502, "upstream_error", "not finite"),
    (answers(GOOD[0], row(1, "????")), 502, "upstream_error", FOLLOW),
    (answers(row(0, "AAAA"), row(1, "AAAA")), 502, "upstream_error", FOLLOW),
    (body_of(json.dumps({"data": GOOD, "usage": {"prompt_tokens": -1}})), 502, "", FOLLOW),
    (body_of(json.dumps({"data": GOOD, "usage": {"prompt_tokens": 2**40}})), 502, "", FOLLOW),
    (body_of(json.dumps({"data": GOOD, "usage": {"prompt_tokens": "9"}})), 502, "", FOLLOW),
]


@pytest.mark.parametrize(("fault", "status", "code", "words"), FAULTS)
async def test_a_fault_has_its_own_status(
    text: TextModel, fault: Answer, status: int, code: str, words: str
) -> None:
    async with (
        fake_upstream(fault) as upstream,
        running(text, FakeFleet(), upstreams={"one": upstream.entry()}) as gateway,
    ):
        began = time.monotonic()
        answer = await ask(gateway)
        assert time.monotonic() - began < 5.0
        error = answer.json()["error"]
        assert answer.status_code == status
        assert error["code"] == (code or "upstream_error")
        assert words in error["message"]
        assert "one" in error["message"]
        [finished] = await gateway.until_finished()
        assert finished.outcome == "error"
        fleet = gateway.upstreams[0].fleet
        await until(lambda: not fleet.num_unfinished and not fleet.endpoints.all[0].num_running)
        # At most one retry, and only after a connection that was closed before an answer.
        assert len(upstream.bodies) == (2 if fault is leaves else 1)


async def test_rows_without_counts_are_an_answer(text: TextModel) -> None:
    """What the faults above are changes of."""
    async with (
        fake_upstream(body_of(json.dumps({"data": GOOD}))) as upstream,
        running(text, FakeFleet(), upstreams={"one": upstream.entry()}) as gateway,
    ):
        found = (await ask(gateway)).json()
    assert [one["embedding"] for one in found["data"]] == [[1.0, 2.0], [3.0, 4.0]]
    assert found["usage"]["prompt_tokens"] == 4  # a quarter of the 13 bytes of ["one","two"]


@pytest.mark.parametrize("tells", [False, True])
async def test_an_answer_that_is_too_large_is_refused(
    text: TextModel, tells: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its declared length, or as soon as that much has arrived."""
    monkeypatch.setattr(embedding, "_VECTOR_BYTES", 1000)
    size = 3 * 1000
    whole = json.dumps({"data": GOOD}).encode()
    for more, status in ((0, 200), (1, 502)):
        body = whole + b" " * (size - len(whole) + more)
        fault = refuses(200, body) if tells else begins(body, ends="well")
        async with (
            fake_upstream(fault) as upstream,
            running(text, FakeFleet(), upstreams={"one": upstream.entry()}) as gateway,
        ):
            assert (await ask(gateway)).status_code == status


async def test_each_phase_has_its_own_time_out(text: TextModel) -> None:
    async def slowly(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.4)
        response = web.StreamResponse(headers={"content-type": "application/json"})
        await response.prepare(request)
        await asyncio.sleep(0.4)
        await response.write(json.dumps({"data": GOOD}).encode())
        return response

    for first, between, status in ((0.6, 0.6, 200), (0.2, 5.0, 504), (5.0, 0.2, 504)):
        async with fake_upstream(slowly) as upstream:
            entry = upstream.entry(first_token_seconds=first, between_tokens_seconds=between)
            async with running(text, FakeFleet(), upstreams={"one": entry}) as gateway:
                began = time.monotonic()
                assert (await ask(gateway)).status_code == status
                assert time.monotonic() - began < 2.0


async def test_compressed_answers_are_refused(text: TextModel) -> None:
    async with (
        fake_upstream(refuses(200, {"data": GOOD}, content_encoding="gzip")) as upstream,
        running(text, FakeFleet(), upstreams={"one": upstream.entry()}) as gateway,
    ):
        assert (await ask(gateway)).status_code == 502


async def test_dimensions_that_an_upstream_ignores_are_refused(text: TextModel) -> None:
    async with (
        fake_upstream(answers(*GOOD)) as upstream,
        running(text, FakeFleet(), upstreams={"one": upstream.entry()}) as gateway,
    ):
        for _ in range(4):
            answer = await ask(gateway, dimensions=1)
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (400, "dimensions")
        assert (await ask(gateway, dimensions=2)).status_code == 200


@pytest.mark.parametrize(
    ("fault", "ejects"),
    [
        (answers(), True),
        (begins(b"{", ends="hangs"), True),
        (begins(b"{", ends="cut"), True),
        (refuses(500), True),
        (refuses(400), False),
        # Some inputs overflow in the precision of some models.
        (answers(row(0, packed(float("nan"))), row(1, packed(1.0))), False),
    ],
)
async def test_an_endpoint_that_fails_is_ejected(
    text: TextModel, fault: Answer, ejects: bool
) -> None:
    async with (
        fake_upstream(fault) as upstream,
        running(text, FakeFleet(), upstreams={"one": upstream.entry()}) as gateway,
    ):
        codes = [(await ask(gateway)).json()["error"]["code"] for _ in range(4)]
        assert (codes[3] == "upstream_unavailable") is ejects
        assert len(upstream.bodies) == (3 if ejects else 4)


@pytest.mark.parametrize("fault", [refuses(500), refuses(503), refuses(429), leaves])
async def test_one_retry_goes_to_another_endpoint(text: TextModel, fault: Answer) -> None:
    async with fake_upstream(fault) as bad, fake_upstream(Embeds()) as good:
        entry = bad.entry(urls=[bad.url, good.url])
        async with running(text, FakeFleet(), upstreams={"one": entry}) as gateway:
            assert (await ask(gateway)).status_code == 200
        assert (len(bad.bodies), len(good.bodies)) == (1, 1)


async def test_the_limits_of_the_upstream_hold(text: TextModel) -> None:
    running_now = most = 0
    embeds = Embeds()

    async def counted(request: Any) -> Any:
        nonlocal running_now, most
        running_now += 1
        most = max(most, running_now)
        await asyncio.sleep(0.05)
        try:
            return await embeds(request)
        finally:
            running_now -= 1

    fields = {"concurrency": 2, "max_waiting": 3, "requests_per_minute": 6}
    async with (
        fake_upstream(counted) as upstream,
        running(text, FakeFleet(), upstreams={"one": upstream.entry(**fields)}) as gateway,
    ):
        found = await asyncio.gather(*[ask(gateway) for _ in range(8)])
        assert sorted(answer.status_code for answer in found) == [200] * 5 + [503] * 3
        assert most == 2
        later = [await ask(gateway) for _ in range(2)]
    assert [answer.status_code for answer in later] == [200, 503]
    assert later[1].json()["error"]["code"] == "upstream_busy"
    assert int(later[1].headers["retry-after"]) >= 1
