"""Several endpoints, limits and the ledger of an upstream."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gatewayd.store.tables import reservations, usage
from gatewayd.text.text_model import TextModel
from gatewayd.upstreams import endpoints
from tests.gatewayd.fake_fleet import FakeFleet, hangs
from tests.gatewayd.gateway import Gateway, running, until
from tests.gatewayd.store_fixtures import copy_of
from tests.gatewayd.tenants.tenant_gateway import town
from tests.gatewayd.upstreams.fake_upstream import (
    USAGE,
    WORDS,
    chunk,
    event,
    fake_upstream,
    leaves,
    refuses,
    says,
    sends,
)
from tests.gatewayd.upstreams.fake_upstream import hangs as silence

CHAT: dict[str, Any] = {"model": "far", "messages": [{"role": "user", "content": "hi"}]}
PATH = "/v1/chat/completions"


async def ask(gateway: Gateway, **fields: Any) -> httpx.Response:
    return await gateway.http.post(PATH, json={**CHAT, **fields})


@pytest.fixture
def unused() -> Iterator[str]:
    """A URL at which nothing listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/v1"


@pytest.mark.parametrize("fault", [refuses(500), refuses(503), refuses(429), leaves])
async def test_one_retry_goes_to_another_endpoint(text: TextModel, fault: Any) -> None:
    async with fake_upstream(fault) as bad, fake_upstream(says) as good:
        entry = bad.entry(urls=[bad.url, good.url])
        async with running(text, FakeFleet(), upstreams={"one": entry}) as gateway:
            answer = await ask(gateway)
        assert answer.status_code == 200
        assert (len(bad.bodies), len(good.bodies)) == (1, 1)


async def test_there_is_no_second_retry(text: TextModel) -> None:
    async with fake_upstream(leaves) as one, fake_upstream(leaves) as two:
        entry = one.entry(urls=[one.url, two.url])
        async with running(text, FakeFleet(), upstreams={"one": entry}) as gateway:
            assert (await ask(gateway)).status_code == 502
        assert len(one.bodies) + len(two.bodies) == 2


async def test_a_refused_connection_is_a_status_and_the_endpoint_is_ejected(
    text: TextModel, unused: str
) -> None:
    async with (
        fake_upstream(says) as upstream,
        running(text, FakeFleet(), upstreams={"one": upstream.entry(urls=[unused])}) as gateway,
    ):
        answers = [await ask(gateway) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [502, 502, 503]
        assert "refuses connections" in answers[0].json()["error"]["message"]
        assert answers[2].json()["error"]["code"] == "upstream_unavailable"
        assert int(answers[2].headers["retry-after"]) >= 1
        ready = (await gateway.http.get("/readyz?verbose=1")).json()
        assert ready["status"] == "degraded"
        assert ready["models"][1]["status"] == "not_ready"


@pytest.mark.parametrize(
    "fault",
    [
        sends(chunk("a"), ends="cut"),
        sends(chunk("a"), ends="hangs"),
        sends(chunk("a"), b"data: {\n\n"),
        sends(chunk("a"), event({"error": {"message": "no memory"}})),
    ],
)
async def test_an_endpoint_that_fails_within_its_answers_is_ejected(
    text: TextModel, fault: Any
) -> None:
    async with (
        fake_upstream(fault) as upstream,
        running(text, FakeFleet(), upstreams={"one": upstream.entry()}) as gateway,
    ):
        codes = [(await ask(gateway)).json()["error"]["code"] for _ in range(4)]
        assert codes[3] == "upstream_unavailable"
        assert len(upstream.bodies) == 3


async def test_an_ejected_endpoint_serves_again_after_a_probe(
    text: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "LEAST_SECONDS", 0.05)
    async with fake_upstream(refuses(500), refuses(500), refuses(500), says) as upstream:
        upstream.is_healthy = False
        async with running(text, FakeFleet(), upstreams={"one": upstream.entry()}) as gateway:
            endpoint = gateway.upstreams[0].fleet.endpoints.all[0]
            endpoint.probe_seconds = 0.05
            assert [(await ask(gateway)).status_code for _ in range(4)] == [502, 502, 502, 503]
            assert len(upstream.bodies) == 3
            await until(lambda: upstream.num_probes >= 2)
            assert endpoint.is_ejected
            upstream.is_healthy = True
            await until(lambda: not endpoint.is_ejected)
            assert (await ask(gateway)).status_code == 200
            await gateway.until_shown(
                'gatewayd_upstream_endpoint_ready{endpoint="0",upstream="one"} 1.0'
            )


async def test_a_client_at_fault_ejects_nothing(text: TextModel) -> None:
    async with (
        fake_upstream(refuses(400)) as upstream,
        running(text, FakeFleet(), upstreams={"one": upstream.entry()}) as gateway,
    ):
        for _ in range(5):
            assert (await ask(gateway)).status_code == 400
        assert len(upstream.bodies) == 5
        assert gateway.upstreams[0].fleet.is_ready


async def test_the_concurrency_is_not_exceeded(text: TextModel) -> None:
    running_now = most = 0

    async def counted(request: Any) -> Any:
        nonlocal running_now, most
        running_now += 1
        most = max(most, running_now)
        await asyncio.sleep(0.05)
        try:
            return await says(request)
        finally:
            running_now -= 1

    async with (
        fake_upstream(counted) as upstream,
        running(
            text,
            FakeFleet(),
            upstreams={"one": upstream.entry(concurrency=2, max_waiting=3)},
        ) as gateway,
    ):
        answers = await asyncio.gather(*[ask(gateway) for _ in range(8)])
    statuses = sorted(answer.status_code for answer in answers)
    assert statuses == [200] * 5 + [503] * 3
    assert most == 2
    busy = next(answer for answer in answers if answer.status_code == 503)
    assert busy.json()["error"]["code"] == "upstream_busy"


async def test_requests_a_minute_are_limited(text: TextModel) -> None:
    async with (
        fake_upstream(says) as upstream,
        running(
            text, FakeFleet(), upstreams={"one": upstream.entry(requests_per_minute=2)}
        ) as gateway,
    ):
        answers = [await ask(gateway) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 503]
    assert 1 <= int(answers[2].headers["retry-after"]) <= 30


async def test_a_request_never_sent_is_not_counted_for_its_minute(
    text: TextModel, unused: str
) -> None:
    async with fake_upstream(says) as upstream:
        entry = upstream.entry(urls=[unused], requests_per_minute=1)
        async with running(text, FakeFleet(), upstreams={"one": entry}) as gateway:
            codes = [(await ask(gateway)).json()["error"]["code"] for _ in range(3)]
    assert codes == ["upstream_error", "upstream_error", "upstream_unavailable"]


async def test_one_that_waits_gives_its_turn_back_when_its_client_leaves(text: TextModel) -> None:
    async with (
        fake_upstream(silence, says) as upstream,
        running(
            text,
            FakeFleet(),
            upstreams={"one": upstream.entry(concurrency=1, first_token_seconds=1)},
        ) as gateway,
    ):
        fleet = gateway.upstreams[0].fleet
        first = asyncio.create_task(ask(gateway))
        await until(lambda: len(upstream.bodies) == 1)
        with pytest.raises(httpx.ReadTimeout):
            await gateway.http.post(PATH, json=CHAT, timeout=0.2)
        await until(lambda: fleet.num_pending == 0)
        assert (await ask(gateway)).status_code == 200
        assert (await first).status_code == 504
        await until(lambda: fleet.num_unfinished == 0)
        assert fleet.room.remaining_requests == 1 + 256


# The ledger


@pytest.fixture
def folder(fresh_store: Path, tmp_path: Path) -> Path:
    return copy_of(fresh_store, tmp_path / "store")


async def test_the_ledger_has_what_the_upstream_counted_once(text: TextModel, folder: Path) -> None:
    broken = sends(*[chunk(word) for word in WORDS], ends="cut")
    answers = [says, leaves, says, refuses(500), says, refuses(400), says, broken, says]
    async with fake_upstream(*answers) as upstream, fake_upstream(says) as other:
        # One list, whichever of the two is chosen.
        other.answers = upstream.answers
        entry = upstream.entry(urls=[upstream.url, other.url])
        async with town(text, folder, hangs, upstreams={"one": entry}) as here:
            await here.act(
                "PUT",
                "/admin/prices",
                {"model": "far", "input": 3_000_000, "cached": 1_000_000, "output": 7_000_000},
            )
            await here.tenant("a", most_tokens=1_000_000, most_micros=10_000_000)
            key = await here.key("a")
            statuses = []
            for at in range(12):
                body = {**CHAT, "stream": at % 2 == 1, "max_tokens": 50}
                statuses.append((await here.post(PATH, key, body)).status_code)
            assert statuses.count(200) >= 10
            await until(lambda: len(here.gateway.finished) == 12)
            rows = await here.rows(usage)
            assert not await here.rows(reservations)
            await here.check_books()
    whole = [row for row in rows if row["outcome"] == "stop"]
    prompt, completion = (upstream.charged[at] + other.charged[at] for at in range(2))
    assert sum(row["prompt_tokens"] for row in whole) == prompt
    assert sum(row["completion_tokens"] for row in whole) == completion
    cost = 3 * (USAGE["prompt_tokens"] - 4) + 4 + 7 * 3  # type: ignore[operator]
    assert {row["micros"] for row in whole} == {cost}
    # An answer that broke off is charged by what was delivered, and its prompt by an estimate.
    [cut] = [row for row in rows if row["outcome"] == "error" and row["completion_tokens"]]
    assert cut["completion_tokens"] == 3
    assert 5 < cut["prompt_tokens"] < 30


async def test_a_request_never_sent_costs_nothing(
    text: TextModel, folder: Path, unused: str
) -> None:
    async with fake_upstream(says) as upstream:
        entry = upstream.entry(urls=[unused])
        async with town(text, folder, hangs, upstreams={"one": entry}) as here:
            await here.tenant("a", most_tokens=1_000_000)
            key = await here.key("a")
            assert (await here.post(PATH, key, CHAT)).status_code == 502
            rows = await here.rows(usage)
            assert [(row["prompt_tokens"], row["completion_tokens"]) for row in rows] == [(0, 0)]


async def test_time_outs_do_not_add_up(text: TextModel) -> None:
    """A retry has the rest of the same time."""
    async with fake_upstream(leaves, silence) as upstream:
        entry = upstream.entry(first_token_seconds=0.5)
        async with running(text, FakeFleet(), upstreams={"one": entry}) as gateway:
            began = time.monotonic()
            answer = await ask(gateway)
            assert answer.status_code == 504
            assert time.monotonic() - began < 1.2
