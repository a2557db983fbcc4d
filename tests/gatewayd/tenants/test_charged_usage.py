"""Charged usage: computed tokens are charged however a request ends; limits held meanwhile."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from gatewayd.engines.prompt_usage import PromptUsage
from gatewayd.errors import QueueFull
from gatewayd.pipeline import settlement
from gatewayd.store.tables import reservations, usage
from gatewayd.tenants.billing.costs import LedgerEntry, RequestedCost, Spent
from gatewayd.tenants.billing.prices import FREE
from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import Job, hangs, hangs_after, says
from tests.gatewayd.gateway import until
from tests.gatewayd.store_fixtures import copy_of
from tests.gatewayd.tenants.tenant_gateway import town

PATH = "/v1/completions"


@pytest.fixture
def folder(fresh_store: Path, tmp_path: Path) -> Path:
    return copy_of(fresh_store, tmp_path / "store")


def ask(max_tokens: int = 5, **more: object) -> dict[str, object]:
    return {"model": "nano", "prompt": [7] * 100, "max_tokens": max_tokens, **more}


async def leave(here: Any, key: str, body: dict[str, object]) -> Job:
    """Send a request that nobody answers, and leave it."""
    count, num_jobs = len(here.gateway.finished), len(here.gateway.fleet.jobs)
    asked = asyncio.create_task(here.post(PATH, key, body))
    await until(lambda: len(here.gateway.fleet.jobs) > num_jobs)
    asked.cancel()
    await until(lambda: len(here.gateway.finished) > count)
    job: Job = here.gateway.fleet.jobs[-1]
    return job


def counted(row: Any) -> tuple[int, int, int]:
    return row["prompt_tokens"], row["cached_tokens"], row["completion_tokens"]


async def test_who_leaves_holds_slot_tokens_and_budget_until_the_engine_has_told(
    text: TextModel, folder: Path
) -> None:
    async with town(text, folder, hangs) as here:
        here.gateway.fleet.is_silent = True
        terms = {"concurrency": 1, "tokens_per_minute": 1000, "most_tokens": 1000}
        await here.tenant("a", **terms)
        key = await here.key("a")
        job = await leave(here, key, ask())
        account = here.durable.tenancy.directory._accounts["a"]
        assert account.limit_status()["concurrency"]["remaining"] == 0
        assert (await here.post(PATH, key, ask())).status_code == 429
        assert await here.rows(usage) == []
        assert len(await here.rows(reservations)) == 1
        assert job.tell is not None
        job.tell(PromptUsage(0.5, 48, 16, (2,)))
        assert account.limit_status()["concurrency"]["remaining"] == 1
        assert account.limit_status()["tokens_per_minute"]["remaining"] in range(950, 960)
        (row,) = await here.rows(usage)
        assert (row["outcome"], row["engine_seconds"], *counted(row)) == ("abort", 0.5, 48, 16, 2)
        assert (await here.budget("a"))["used_tokens"] == 50
        await here.check_books()


async def test_an_answer_frees_the_slot_at_once_though_seconds_are_not_known(
    text: TextModel, folder: Path
) -> None:
    async with town(text, folder, says([300, 301], cached=16)) as here:
        here.gateway.fleet.is_silent = True
        await here.tenant("a", concurrency=1)
        key = await here.key("a")
        for _ in range(2):
            assert (await here.post(PATH, key, ask())).status_code == 200
        assert await here.rows(usage) == []
        for count, job in enumerate(here.gateway.fleet.jobs, 1):
            assert job.tell is not None
            job.tell(PromptUsage(0.5, 100, 16, (3,)))
            row = (await here.rows(usage))[-1]
            assert len(await here.rows(usage)) == count
            assert (row["engine_seconds"], *counted(row)) == (0.5, 100, 16, 2), "as it was told"


async def test_what_was_never_begun_costs_nothing(text: TextModel, folder: Path) -> None:
    async with town(text, folder, hangs) as here:
        await here.tenant("a", most_tokens=1000)
        await leave(here, await here.key("a"), ask())
        (row,) = await here.rows(usage)
        assert (row["outcome"], *counted(row)) == ("abort", 0, 0, 0)
        await here.check_books()


async def test_tokens_that_nobody_was_told_are_charged_up_to_what_was_asked(
    text: TextModel, folder: Path
) -> None:
    async with town(text, folder, hangs_after([300, 301])) as here:
        here.gateway.fleet.is_silent = True
        await here.tenant("a")
        key = await here.key("a")
        for made, charged in ((1, 2), (4, 4), (9, 5)):
            job = await leave(here, key, ask())
            assert job.tell is not None
            job.tell(PromptUsage(0.5, 100, 0, (made,)))
            assert counted((await here.rows(usage))[-1]) == (100, 0, charged)


@pytest.mark.parametrize(("took", "charged"), [(0, None), (48, (48, 0, 0))])
async def test_prompts_whose_next_one_is_refused_cost_what_was_computed(
    text: TextModel, folder: Path, took: int, charged: tuple[int, ...] | None
) -> None:
    """They were sent by then, and an engine may be in a step with them."""
    async with town(text, folder, hangs) as here:
        fleet = here.gateway.fleet
        fleet.is_silent, fleet.refuses_from = True, 1
        fleet.refusal = QueueFull("the queue is full", by_tokens=False)
        await here.tenant("a", concurrency=1, most_tokens=1000)
        key = await here.key("a")
        body = ask() | {"prompt": [[7] * 100, [8] * 100]}
        assert (await here.post(PATH, key, body)).status_code == 503
        assert (await here.post(PATH, key, ask())).status_code == 429, "the first may run"
        (job,) = fleet.jobs
        assert job.tell is not None
        job.tell(PromptUsage(took / 100, took, 0, (0,)))
        found = [counted(row) for row in await here.rows(usage)]
        assert found == ([] if charged is None else [charged])
        assert await here.rows(reservations) == []
        await here.check_books()


async def test_an_engine_that_never_tells_is_charged_for_the_prompt_in_the_end(
    text: TextModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settlement, "MOST_SECONDS", 0.2)
    async with town(text, folder, hangs) as here:
        here.gateway.fleet.is_silent = True
        await here.tenant("a", concurrency=1)
        await leave(here, await here.key("a"), ask())
        account = here.durable.tenancy.directory._accounts["a"]
        await until(lambda: account.limit_status()["concurrency"]["remaining"] == 1)
        (row,) = await here.rows(usage)
        assert counted(row) == (100, 0, 0)
        job = here.gateway.fleet.jobs[-1]
        assert job.tell is not None
        job.tell(PromptUsage(0.5, 48, 0, (0,)))
        assert len(await here.rows(usage)) == 1


async def test_a_key_that_is_revoked_is_charged_for_what_it_ran(
    text: TextModel, folder: Path
) -> None:
    async with town(text, folder, hangs_after([300])) as here:
        await here.tenant("a")
        key = await here.key("a")
        waiting = asyncio.create_task(here.post(PATH, key, ask()))
        await until(lambda: here.gateway.fleet.jobs and here.gateway.fleet.jobs[0].cached == 0)
        await here.act("DELETE", f"/admin/keys/{key.split('_')[1]}")
        assert (await waiting).status_code == 401
        (row,) = await here.rows(usage)
        assert (row["outcome"], *counted(row)) == ("error", 100, 0, 1)


async def test_the_ledger_charges_the_prompt_where_seconds_come_without_tokens(
    text: TextModel, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What must not happen is counted, and costs no less than it would have."""
    async with town(text, folder, hangs) as here:
        await here.tenant("a")
        ledger = here.durable.tenancy.ledger
        asked = RequestedCost("req_1", "a", None, PATH, "nano", 1500, 5)
        entry = LedgerEntry("use_1", asked, FREE, int(time.time()), False)
        with caplog.at_level(logging.ERROR):
            assert ledger.settle(entry, Spent("abort", 0, 0, 0, engine_seconds=0.5)).tokens == 1500
        assert "req_1 used 0.500 s of engine time but reported no tokens" in caplog.text
        kept = Spent("abort", 7, 0, 0, engine_seconds=0.5)
        assert ledger.settle(entry._replace(id="use_2"), kept) is kept
        free = Spent("abort", 0, 0, 0)
        assert ledger.settle(entry._replace(id="use_3"), free) is free
        await ledger.flush()
        assert [row["prompt_tokens"] for row in await here.rows(usage)] == [1500, 7, 0]
        page = (await here.gateway.http.get("/metrics")).text
        assert "gatewayd_uncharged_engine_seconds_total 0.5" in page
