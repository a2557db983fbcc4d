"""Budget ledger: limits and prices; nothing is overspent, and charges equal usage."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import delete

from gatewayd.store.tables import reservations, usage
from gatewayd.tenants.billing.costs import RequestedCost
from gatewayd.tenants.billing.crash_marks import NAME, Mark, Marks, read_marks
from gatewayd.tenants.billing.prices import Price
from gatewayd.tenants.limits import RateGate, TenantLimits, TokenBucket
from gatewayd.text.text_model import TextModel
from tests.clock import Clock
from tests.gatewayd.fake_fleet import Job, Script, hangs, hangs_after, says
from tests.gatewayd.gateway import until
from tests.gatewayd.store_fixtures import copy_of, opened
from tests.gatewayd.tenants.tenant_gateway import bearer, check_books, town


def of(tokens: int) -> RequestedCost:
    """A request that may take so many."""
    return RequestedCost("req_1", "a", None, "/v1/completions", "nano", 1, tokens - 1)


PATH = "/v1/completions"


@pytest.fixture
def folder(fresh_store: Path, tmp_path: Path) -> Path:
    return copy_of(fresh_store, tmp_path / "store")


def ask(num_prompt: int = 3, max_tokens: int = 5, **more: object) -> dict[str, object]:
    return {"model": "nano", "prompt": [7] * num_prompt, "max_tokens": max_tokens, **more}


async def test_sixty_four_clients_together_spend_no_token_too_many(
    text: TextModel, folder: Path
) -> None:
    """LiteLLM checked a budget before each request, and all of them passed."""
    rng = random.Random(3)
    budget, running = 5_000, []

    async def script(job: Job) -> None:
        running.append(await here.budget("a"))  # this job is not over: its reservation stands
        await asyncio.sleep(rng.random() / 200)
        await says([300] * rng.randint(1, job.request.params.max_tokens))(job)

    async with town(text, folder, script) as here:
        await here.tenant("a", most_tokens=budget)
        key, told = await here.key("a"), []

        async def client(number: int) -> None:
            draw = random.Random(number)
            while True:
                body = ask(draw.randint(1, 20), draw.randint(1, 30), n=draw.randint(1, 2))
                answer = await here.post(PATH, key, body)
                if answer.status_code == 200:
                    told.append(answer.json()["usage"]["total_tokens"])
                    continue
                assert answer.json()["error"]["code"] == "insufficient_quota", answer.text
                if "x-should-retry" in answer.headers:
                    return
                await asyncio.sleep(0.01)

        async with asyncio.TaskGroup() as group:
            for number in range(64):
                group.create_task(client(number))
        await here.check_books()
        row = await here.budget("a")
        assert min(seen["reserved_tokens"] for seen in running) >= 2  # a prompt and a token
        assert max(seen["used_tokens"] + seen["reserved_tokens"] for seen in running) <= budget
        assert (row["reserved_tokens"], row["used_tokens"]) == (0, sum(told))
        assert budget - 80 < row["used_tokens"] <= budget


async def test_a_budget_of_one_request_is_one_requests(text: TextModel, folder: Path) -> None:
    async with town(text, folder, says([300] * 5, reason="length")) as here:
        await here.tenant("a", most_tokens=8)
        key = await here.key("a")
        answers = await asyncio.gather(*[here.post(PATH, key, ask()) for _ in range(64)])
        assert sorted(answer.status_code for answer in answers) == [200] + [429] * 63
        assert len(here.gateway.fleet.jobs) == 1
        over = await here.post(PATH, key, ask())
    assert over.headers["x-should-retry"] == "false"
    assert "retry-after" not in over.headers
    assert over.json()["error"]["type"] == "insufficient_quota"
    assert "has 0 tokens left and this request may take 8" in over.json()["error"]["message"]


async def test_what_runs_holds_its_most_and_gives_the_rest_back(
    text: TextModel, folder: Path
) -> None:
    async with town(text, folder, hangs_after([300, 301])) as here:
        await here.tenant("a", most_tokens=20)
        key = await here.key("a")
        async with here.gateway.http.stream(
            "POST", PATH, json=ask(max_tokens=10, stream=True), headers=bearer(key)
        ) as stream:
            lines = stream.aiter_lines()  # kept: without it the stream is closed
            assert await anext(lines)
            assert (await here.budget("a"))["reserved_tokens"] == 13
            held = await here.post(PATH, key, ask())
            assert (held.status_code, held.headers["retry-after"]) == (429, "1")
            assert "x-should-retry" not in held.headers
        await until(lambda: here.gateway.finished)
        row = await here.budget("a")
        assert (row["used_tokens"], row["reserved_tokens"]) == (5, 0)
        await here.check_books()


async def test_a_request_that_the_engines_refuse_costs_nothing(
    text: TextModel, folder: Path
) -> None:
    async with town(text, folder, hangs) as here:
        await here.tenant("a", most_tokens=20, concurrency=1)
        key = await here.key("a")
        here.gateway.fleet.model = None
        here.gateway.fleet.wait_model = _never  # type: ignore[method-assign]
        for _ in range(3):
            assert (await here.post(PATH, key, ask())).status_code == 503
        row = await here.budget("a")
        assert (row["used_tokens"], row["reserved_tokens"]) == (0, 0)
        assert await here.rows(usage) == []


async def _never() -> None:
    return None


async def test_a_client_that_leaves_pays_for_what_was_generated(
    text: TextModel, folder: Path
) -> None:
    async with town(text, folder, hangs_after([300, 301])) as here:
        await here.tenant("a")
        key = await here.key("a")
        asked = asyncio.create_task(here.post(PATH, key, ask()))
        await until(lambda: here.gateway.fleet.jobs and here.gateway.fleet.jobs[0].cached == 0)
        asked.cancel()
        await until(lambda: here.gateway.finished)
        (row,) = await here.rows(usage)
        assert (row["outcome"], row["prompt_tokens"], row["completion_tokens"]) == ("abort", 3, 2)
        await here.check_books()


async def test_every_kind_of_request_is_charged_as_it_is_told(
    text: TextModel, folder: Path
) -> None:
    async with town(text, folder, says([300, 301, 302], cached=2)) as here:
        await here.tenant("a")
        key = await here.key("a")
        chat = {"model": "nano", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
        for path, body in [
            (PATH, ask(max_tokens=3, n=2)),
            (PATH, ask(max_tokens=3) | {"prompt": [[7, 8], [9, 10, 11]]}),
            ("/v1/chat/completions", chat),
            ("/v1/responses", {"model": "nano", "input": "hi", "max_output_tokens": 3}),
        ]:
            answer = await here.post(path, key, body)
            assert answer.status_code == 200, answer.text
            told = answer.json()["usage"]
            row = (await here.rows(usage))[-1]
            assert row["endpoint"] == path
            counted = (row["prompt_tokens"], row["completion_tokens"])
            names = ("prompt_tokens", "completion_tokens")
            if path == "/v1/responses":
                names = ("input_tokens", "output_tokens")
            assert counted == tuple(told[name] for name in names), path
            assert row["cached_tokens"] > 0
        await here.check_books()


async def test_a_price_is_exact_and_a_budget_of_money_is_kept(
    text: TextModel, folder: Path
) -> None:
    async with town(text, folder, says([300, 301], cached=1)) as here:
        await here.tenant("a", most_micros=1_000)
        key = await here.key("a")
        unpriced = await here.post(PATH, key, ask())
        assert unpriced.json()["error"]["code"] == "model_not_priced"
        price = {"model": "*", "input": 7_000_000, "cached": 500_000, "output": 11_000_001}
        await here.act("PUT", "/admin/prices", price)
        while (answer := await here.post(PATH, key, ask(max_tokens=4))).status_code == 200:
            assert (await here.rows(usage))[-1]["micros"] == 37  # 14.5 + 22.000002
        assert "millionths left" in answer.json()["error"]["message"]
        row = await here.budget("a")
        most = 3 * 7 + 4 * 11 + 1
        assert 1_000 - most < row["used_micros"] <= 1_000
        await here.check_books()


def test_prices_are_rounded_up_once() -> None:
    assert Price(1, 0, 0).cost(1, 0, 0) == 1
    assert Price(1_000_000, 0, 0).cost(10**15, 0, 0) == 10**15
    assert Price(400_000, 100_000, 600_000).cost(3, 2, 1) == 2  # 0.4 + 0.2 + 0.6
    rng = random.Random(5)
    for _ in range(1000):
        price = Price(*[rng.randint(0, 10**7) for _ in range(3)])
        prompt, output = rng.randint(1, 10**5), rng.randint(0, 10**5)
        cached, less = rng.randint(0, prompt), rng.randint(0, output)
        assert price.cost(prompt, cached, less) <= price.most(prompt, output)


async def test_limits_are_kept_and_told(text: TextModel, folder: Path) -> None:
    async with town(text, folder, says([300])) as here:
        await here.tenant("a", requests_per_minute=3, tokens_per_minute=1_000)
        key = await here.key("a")
        left = []
        for _ in range(3):
            answer = await here.post(PATH, key, ask())
            left.append(answer.headers["x-ratelimit-remaining-requests"])
            assert answer.headers["x-ratelimit-limit-requests"] == "3"
            assert answer.headers["x-ratelimit-limit-tokens"] == "1000"
        assert left == ["2", "1", "0"]
        over = await here.post(PATH, key, ask())
        assert over.status_code == 429
        assert over.json()["error"]["code"] == "rate_limit_exceeded"
        assert 1 <= int(over.headers["retry-after"]) <= 20
        assert over.headers["x-ratelimit-remaining-requests"] == "0"
        assert "requests a minute" in over.json()["error"]["message"]
        await here.act("PATCH", "/admin/tenants/a", {"requests_per_minute": None})
        assert (await here.post(PATH, key, ask())).status_code == 200


async def test_no_more_run_at_once_than_may(text: TextModel, folder: Path) -> None:
    async with town(text, folder, hangs) as here:
        await here.tenant("a", concurrency=2)
        await here.tenant("b")
        key, other = await here.key("a"), await here.key("b")
        waiting = [asyncio.create_task(here.post(PATH, key, ask())) for _ in range(2)]
        await until(lambda: len(here.gateway.fleet.jobs) == 2)
        over = await here.post(PATH, key, ask())
        assert (over.status_code, over.headers["retry-after"]) == (429, "1")
        waiting.append(asyncio.create_task(here.post(PATH, other, ask())))
        await until(lambda: len(here.gateway.fleet.jobs) == 3)
        for task in waiting:
            task.cancel()
        await until(lambda: len(here.gateway.finished) == 3)
        here.gateway.fleet.script = says([300])
        assert (await here.post(PATH, key, ask())).status_code == 200


def test_a_bucket_fills_within_a_minute_and_may_be_in_debt() -> None:
    clock = Clock()
    bucket = TokenBucket(60, clock.perf_counter)
    bucket.consume(90)
    assert bucket.level == -30
    assert bucket.seconds_until(10) == 40
    clock.wait(40)
    assert bucket.level == 10
    clock.wait(1000)
    assert bucket.level == 60


def test_tokens_that_were_not_used_come_back_and_other_limits_keep_what_was_used() -> None:
    clock = Clock()
    gate = RateGate(TenantLimits(tokens_per_minute=100), clock.perf_counter)
    assert gate.reserve_tokens(of(40)) == 40
    assert gate.reserve_tokens(of(60)) == 60
    gate.settle_tokens(40, 10)
    assert gate.reserve_tokens(of(30)) == 30
    with pytest.raises(Exception, match="100 tokens a minute"):
        gate.reserve_tokens(of(1))
    gate.change(TenantLimits(tokens_per_minute=200))
    assert gate.reserve_tokens(of(100)) == 100
    gate.settle_tokens(0, 1000)
    clock.wait(60)
    with pytest.raises(Exception, match="try again in"):
        gate.reserve_tokens(of(1))


async def test_a_tenant_that_nobody_limits_is_not_written_down_as_nobodys(
    text: TextModel, folder: Path
) -> None:
    async with town(text, folder, says([300])) as here:
        assert (await here.gateway.http.post(PATH, json=ask())).status_code == 200
        assert await here.rows(usage) == []
        await here.act("PATCH", "/admin/tenants/default", {"most_tokens": 10})
        assert (await here.gateway.http.post(PATH, json=ask())).status_code == 200
        assert (await here.gateway.http.post(PATH, json=ask())).status_code == 429
        (row,) = await here.rows(usage)
        assert (row["tenant"], row["key_id"]) == ("default", None)


def computes(cached: int) -> Script:
    """The prompt, and nothing behind it."""

    async def script(job: Job) -> None:
        job.compute(cached)
        await job.gone.wait()

    return script


@pytest.mark.parametrize(
    ("script", "mark", "is_kept", "charged"),
    [
        (hangs_after([300, 301]), Mark(2, 3, 0), True, (3, 0, 2)),
        (computes(cached=1), Mark(0, 3, 1), True, (3, 1, 0)),
        (hangs, Mark(0, 0, 0), True, (0, 0, 0)),  # it waited
        (hangs_after([300, 301]), Mark(2, 3, 0), False, (3, 0, 0)),  # nobody knows any more
    ],
)
async def test_what_the_dead_held_is_settled_once_at_what_is_known(
    text: TextModel,
    folder: Path,
    tmp_path: Path,
    script: Script,
    mark: Mark,
    is_kept: bool,
    charged: tuple[int, int, int],
) -> None:
    async with town(text, folder, script) as here:
        price = {"model": "*", "input": 10**6, "cached": 0, "output": 10**6}
        await here.act("PUT", "/admin/prices", price)
        await here.tenant("a", most_tokens=100)
        key = await here.key("a")
        waiting = asyncio.create_task(here.post(PATH, key, ask(max_tokens=50)))
        await until(lambda: here.gateway.fleet.jobs)
        await until(lambda: mark in read_marks(folder / NAME).values())
        assert len(await here.rows(reservations)) == 1
        with sqlite3.connect(folder / "gatewayd.db") as source:
            (dead := tmp_path / "dead").mkdir(mode=0o700)
            with sqlite3.connect(dead / "gatewayd.db") as copy:
                source.backup(copy)
            copy.close()
        source.close()
        (dead / "secret").write_bytes((folder / "secret").read_bytes())
        (dead / "secret").chmod(0o600)
        if is_kept:
            (dead / NAME).write_bytes((folder / NAME).read_bytes())
        waiting.cancel()
    for _ in range(2):
        with opened(dead) as durable:
            await durable.database.read(check_books)
            (row,) = await durable.database.read(lambda c: c.execute(usage.select()).all())
            assert row.outcome == "lost"
            assert (row.prompt_tokens, row.cached_tokens, row.completion_tokens) == charged
            prompt, cached, generated = charged
            assert row.micros == prompt - cached + generated
            assert not await durable.database.read(lambda c: c.execute(reservations.select()).all())


async def test_a_settlement_that_the_store_did_not_take_is_not_lost(
    text: TextModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gatewayd.errors import StoreUnavailable
    from gatewayd.store import retry

    monkeypatch.setattr(retry, "_SECONDS", 0.01)
    async with town(text, folder, says([300])) as here:
        await here.tenant("a")
        key, database, failures = await here.key("a"), here.durable.database, [3]
        write = database.write

        async def broken(work: object) -> object:
            if failures[0]:
                failures[0] -= 1
                raise StoreUnavailable("the disk is full")
            return await write(work)  # type: ignore[arg-type]

        monkeypatch.setattr(database, "write", broken)
        for _ in range(4):
            assert (await here.post(PATH, key, ask())).status_code == 200
        assert len(await here.rows(usage)) == 4
        assert failures == [0]
        await here.check_books()


async def test_what_is_left_when_the_daemon_ends_is_written(text: TextModel, folder: Path) -> None:
    async with town(text, folder, says([300])) as here:
        await here.tenant("a", most_tokens=100)
        key = await here.key("a")
        assert (await here.post(PATH, key, ask())).status_code == 200
    with opened(folder) as durable:
        await durable.database.read(check_books)
        assert len(await durable.database.read(lambda c: c.execute(usage.select()).all())) == 1


async def test_old_usage_goes_and_the_budget_remembers(text: TextModel, folder: Path) -> None:
    async with town(text, folder, says([300])) as here:
        await here.tenant("a", most_tokens=100)
        key = await here.key("a")
        await here.post(PATH, key, ask())
        assert len(await here.rows(usage)) == 1
        await here.durable.tenancy.prune(2**40)
        assert await here.rows(usage) == []
        assert (await here.budget("a"))["used_tokens"] == 4
        await here.durable.database.write(lambda c: c.execute(delete(usage)))


def test_marks_outlive_who_made_them_and_there_is_always_room(tmp_path: Path) -> None:
    marks, slots = Marks(tmp_path / NAME), {}
    for number in range(3000):
        slot = marks.allocate(f"use_{number}")
        assert slot is not None
        slots[number] = slot
        marks.write(slot, number, number + 1, number // 2)
    assert read_marks(tmp_path / NAME) == {f"use_{n}": Mark(n, n + 1, n // 2) for n in range(3000)}
    marks.free(slots[7])
    assert marks.allocate("another") == slots[7]
    found = read_marks(tmp_path / NAME)
    assert (found["another"], "use_7" in found) == (Mark(0, 0, 0), False)
    marks.close()
    assert read_marks(tmp_path / "nothing") == {}
