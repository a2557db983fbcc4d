"""Embeddings of an upstream in the ledger: charged once, as the upstream counts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gatewayd.store.tables import reservations, usage
from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import hangs
from tests.gatewayd.gateway import until
from tests.gatewayd.http.routes.routed import fallback
from tests.gatewayd.http.vectors.test_embeddings import pools
from tests.gatewayd.store_fixtures import copy_of
from tests.gatewayd.tenants.tenant_gateway import Town, town
from tests.gatewayd.upstreams.fake_embeddings import Embeds, answers
from tests.gatewayd.upstreams.fake_upstream import (
    Answer,
    FakeUpstream,
    fake_upstream,
    leaves,
    refuses,
)

PATH = "/v1/embeddings"
BODY: dict[str, Any] = {"model": "far", "input": ["one", "two"]}


@pytest.fixture
def folder(fresh_store: Path, tmp_path: Path) -> Path:
    return copy_of(fresh_store, tmp_path / "store")


@asynccontextmanager
async def charging(
    text: TextModel, folder: Path, answer: Answer, **terms: int
) -> AsyncIterator[tuple[Town, FakeUpstream, str]]:
    """A gateway over an upstream, and the key of a tenant with a budget."""
    async with (
        fake_upstream(answer) as upstream,
        town(text, folder, hangs, upstreams={"one": upstream.entry()}) as here,
    ):
        await here.tenant("a", **{"most_tokens": 1_000_000, **terms})
        yield here, upstream, await here.key("a")
        await here.check_books()


async def test_the_ledger_has_what_the_upstream_counted_once(text: TextModel, folder: Path) -> None:
    embeds = Embeds()
    given: list[Answer] = [embeds, leaves, embeds, refuses(500), embeds, refuses(400), embeds]
    async with fake_upstream(*given) as upstream, fake_upstream(embeds) as other:
        # One list, whichever of the two is chosen.
        other.answers = upstream.answers
        entry = upstream.entry(urls=[upstream.url, other.url])
        async with town(text, folder, hangs, upstreams={"one": entry}) as here:
            prices = {"model": "far", "input": 3_000_000, "output": 0}
            await here.act("PUT", "/admin/prices", prices)
            await here.tenant("a", most_tokens=1_000_000, most_micros=10_000_000)
            key = await here.key("a")
            answered = [
                (await here.post(PATH, key, {**BODY, "input": ["x" * at, "y"]})).json()
                for at in range(1, 11)
            ]
            await until(lambda: len(here.gateway.finished) == 10)
            rows = await here.rows(usage)
            assert not await here.rows(reservations)
            await here.check_books()
    whole = [row for row in rows if row["outcome"] == "stop"]
    assert (len(rows), len(whole)) == (10, 9)
    counted = sum(one["usage"]["prompt_tokens"] for one in answered if "usage" in one)
    assert sum(row["prompt_tokens"] for row in whole) == embeds.charged == counted
    assert {row["completion_tokens"] for row in rows} == {0}
    assert sum(row["micros"] for row in whole) == 3 * embeds.charged
    assert {(row["endpoint"], row["model"]) for row in rows} == {(PATH, "far")}


async def test_without_counts_an_estimate_is_charged(text: TextModel, folder: Path) -> None:
    async with charging(text, folder, Embeds(counts=False)) as (here, _, key):
        found = await here.post(PATH, key, {**BODY, "input": "x" * 398})
        ids = await here.post(PATH, key, {**BODY, "input": [[1, 2], [3, 4, 5]]})
        rows = await here.rows(usage)
    counts = [one.json()["usage"]["prompt_tokens"] for one in (found, ids)]
    assert [row["prompt_tokens"] for row in rows] == counts == [100, 5]


async def test_a_request_that_fails_is_charged_its_prompt_by_an_estimate(
    text: TextModel, folder: Path
) -> None:
    async with charging(text, folder, answers()) as (here, _, key):
        assert (await here.post(PATH, key, {**BODY, "input": "x" * 398})).status_code == 502
        [row] = await here.rows(usage)
    assert (row["outcome"], row["prompt_tokens"], row["completion_tokens"]) == ("error", 100, 0)


async def test_a_budget_is_refused_before_anything_is_sent(text: TextModel, folder: Path) -> None:
    async with charging(text, folder, Embeds(), most_tokens=50) as (here, upstream, key):
        answer = await here.post(PATH, key, {**BODY, "input": "x" * 60})
        code = answer.json()["error"]["code"]
        assert (answer.status_code, code) == (429, "insufficient_quota")
        assert not upstream.bodies
        assert (await here.post(PATH, key, {**BODY, "input": "x" * 20})).status_code == 200
        assert len(upstream.bodies) == 1


async def test_keys_and_rate_limits_are_those_of_any_request(text: TextModel, folder: Path) -> None:
    async with charging(text, folder, Embeds(), requests_per_minute=2) as (here, upstream, key):
        other = await here.key("a", scopes=["infer:nano"])
        found = [(await here.post(PATH, one, BODY)).status_code for one in (other, key, key)]
        assert found == [403, 200, 429]
        assert len(upstream.bodies) == 1


@pytest.mark.parametrize("first", ["far", "nano"])
async def test_a_route_uses_the_first_target_that_is_served(
    text: TextModel, folder: Path, first: str
) -> None:
    order = sorted(("far", "nano"), key=lambda name: name != first)
    routes = [fallback("gone", *order)]
    async with (
        fake_upstream(Embeds()) as upstream,
        town(text, folder, pools(), upstreams={"one": upstream.entry()}, routes=routes) as here,
    ):
        key = await here.key("default")
        answer = await here.post(PATH, key, {**BODY, "model": "smart"})
        rows = await here.rows(usage)
    assert answer.json()["model"] == "smart"
    assert answer.headers["x-gatewayd-target"] == first
    assert len(upstream.bodies) == (first == "far")
    # Charged by the price of the target.
    assert {row["model"] for row in rows} == {first}
