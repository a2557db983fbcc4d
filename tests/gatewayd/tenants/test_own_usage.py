"""Own usage: tenants see theirs and not others'."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import Job, says
from tests.gatewayd.store_fixtures import copy_of
from tests.gatewayd.tenants.tenant_gateway import Town, bearer, town

PATH, USAGE = "/v1/completions", "/v1/gateway/usage"
ASK = {"model": "nano", "prompt": [7, 8, 9], "max_tokens": 4}


@pytest.fixture
def folder(fresh_store: Path, tmp_path: Path) -> Path:
    return copy_of(fresh_store, tmp_path / "store")


async def told(here: Town, key: str, query: str = "") -> dict[str, Any]:
    answer = await here.gateway.http.get(USAGE + query, headers=bearer(key))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_a_tenant_sees_its_own_figures_and_nobody_elses(
    text: TextModel, folder: Path
) -> None:
    async with town(text, folder, says([300, 301], cached=1)) as here:
        await here.act("PUT", "/admin/prices", {"model": "*", "input": 10**6, "output": 10**6})
        await here.tenant("a", requests_per_minute=60, most_tokens=100, budget_period="month")
        await here.tenant("b")
        a, b = await here.key("a"), await here.key("b")
        bucket = here.durable.tenancy.directory._accounts["a"]._gate._work.bucket
        assert bucket is not None
        now = bucket._clock()
        bucket._clock = lambda: now
        for key, count in ((a, 2), (b, 3)):
            for _ in range(count):
                assert (await here.post(PATH, key, ASK)).status_code == 200
        await here.check_books()
        mine, other = await told(here, a), await told(here, b)
        assert mine["tenant"] == "a"
        assert time.time() - mine["models"][0].pop("last_at") < 60
        assert mine["models"] == [
            {
                "model": "nano",
                "requests": 2,
                "prompt_tokens": 6,
                "cached_tokens": 2,
                "completion_tokens": 4,
                # What is cached costs as much where no price says otherwise.
                "micros": 10,
                "engine_seconds": 0.5,
            }
        ]
        assert mine["budget"]["tokens"] == {
            "limit": 100,
            "used": 10,
            "reserved": 0,
            "remaining": 90,
        }
        assert (mine["budget"]["period"], mine["budget"]["micros"]) == ("month", None)
        assert mine["since"] <= time.time() < mine["budget"]["ends_at"]
        per_minute = mine["limits"]["requests_per_minute"]
        assert (per_minute["limit"], per_minute["remaining"]) == (60, 58)
        assert 1 < per_minute["reset_seconds"] <= 2
        assert (other["models"][0]["requests"], other["limits"]) == (3, {})
        assert other["budget"]["tokens"] is None
        later = await told(here, a, f"?since={int(time.time()) + 9}")
        assert later["models"] == []


async def test_what_runs_is_reserved_and_takes_a_place(text: TextModel, folder: Path) -> None:
    gate = asyncio.Event()

    async def waits(job: Job) -> None:
        await gate.wait()
        await says([300])(job)

    async with town(text, folder, waits) as here:
        await here.tenant("a", concurrency=3, most_tokens=50)
        key = await here.key("a")
        asked = asyncio.create_task(here.post(PATH, key, ASK))
        while not (await told(here, key))["budget"]["tokens"]["reserved"]:
            await asyncio.sleep(0.01)
        found = await told(here, key)
        assert found["budget"]["tokens"]["remaining"] == 50 - 7
        assert found["limits"]["concurrency"] == {"limit": 3, "remaining": 2}
        gate.set()
        assert (await asked).status_code == 200


async def test_only_a_key_with_the_right_is_told(text: TextModel, folder: Path) -> None:
    async with town(text, folder, says([300])) as here:
        await here.tenant("a")
        narrow = await here.key("a", scopes=["infer"])
        for headers, status in (({}, 401), (bearer("gw_nobody"), 401), (bearer(narrow), 403)):
            answer = await here.gateway.http.get(USAGE, headers=headers)
            assert answer.status_code == status


async def test_no_query_is_more_than_a_bad_request(text: TextModel, folder: Path) -> None:
    async with town(text, folder, says([300])) as here:
        key = await here.key("default")
        loop = asyncio.get_running_loop()

        async def ask(query: str) -> int:
            answer = await here.gateway.http.get(
                USAGE, params={"since": query}, headers=bearer(key)
            )
            return answer.status_code

        @settings(suppress_health_check=list(HealthCheck))
        @given(st.text(max_size=20) | st.integers().map(str) | st.floats().map(str))
        def search(query: str) -> None:
            status = asyncio.run_coroutine_threadsafe(ask(query), loop).result(30)
            is_time = query.isascii() and query.isdigit() and len(query) <= 12
            assert status == (200 if is_time else 400), query

        await asyncio.to_thread(search)
