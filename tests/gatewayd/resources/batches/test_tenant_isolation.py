"""Tenant isolation: one tenant's waiting batches delay no other tenant's."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from gatewayd.errors import AdmissionPaused
from gatewayd.resources.batches.validation import InputValidation, ValidationResult
from gatewayd.text.text_model import TextModel
from tests.gatewayd.batch_gateway import (
    CHAT,
    create,
    jsonl,
    line,
    serving,
    until_status,
)
from tests.gatewayd.fake_fleet import FakeFleet, Script, hangs, says
from tests.gatewayd.gateway import running, until
from tests.gatewayd.store_fixtures import opened
from tests.gatewayd.tenants.tenant_gateway import Town, bearer
from tests.gatewayd.tenants.test_isolation import batch, over, upload

T = TypeVar("T")
LINES = [line(str(n)) for n in range(500)]
MIDDLE_TOKENS, SMALL_TOKENS = 5, 6
MIDDLE = [line(str(n), max_tokens=MIDDLE_TOKENS) for n in range(500)]
SMALL = [line(str(n), max_tokens=SMALL_TOKENS) for n in range(20)]


@asynccontextmanager
async def housed(
    text: TextModel, folder: Path, script: Script, **batches: int
) -> AsyncIterator[Town]:
    with opened(folder, batches=batches) as durable:
        async with running(text, FakeFleet(script), durable=durable) as gateway:
            yield Town(gateway, durable)


def between(order: list[T], one: T) -> list[T]:
    """From its first to its last."""
    return order[order.index(one) : len(order) - order[::-1].index(one)]


async def send(here: Town, key: str, content: bytes) -> str:
    made = await batch(here, key, await upload(here, key, content))
    batch_id: str = made["id"]
    return batch_id


async def counts(here: Town, key: str, batch_id: str) -> dict[str, int]:
    answer = await here.gateway.http.get(f"/v1/batches/{batch_id}", headers=bearer(key))
    found: dict[str, int] = answer.json()["request_counts"]
    return found


@pytest.mark.flaky(reruns=2)
async def test_a_tenant_at_its_limit_is_in_nobodys_way_and_costs_next_to_nothing(
    text: TextModel, folder: Path
) -> None:
    async with housed(text, folder, says([300], delay=0.005)) as here:
        # The file, the batch, and one line.
        await here.tenant("slow", requests_per_minute=3)
        await here.tenant("good")
        slow, good = await here.key("slow"), await here.key("good")
        held_up = await send(here, slow, jsonl(LINES))
        # All that it has is gone, and all its lines have met the limit.
        async with asyncio.timeout(30):
            while not (await counts(here, slow, held_up))["completed"]:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        two = await send(here, good, jsonl(LINES[:20]))
        assert (await over(here, good, two))["request_counts"]["completed"] == 20
        began_cpu = time.process_time()
        await asyncio.sleep(0.5)
        assert time.process_time() - began_cpu < 0.15
        # It has another one each 20 seconds: all of the other's were done in between.
        assert (await counts(here, slow, held_up))["completed"] <= 2
        assert len(here.gateway.fleet.jobs) <= 22


async def test_tenants_have_lines_in_turn_whoever_has_more_of_them(
    text: TextModel, folder: Path
) -> None:
    async with housed(text, folder, says([300], delay=0.02), concurrency=4) as here:
        for name in ("many", "few"):
            await here.tenant(name)
        many, few = await here.key("many"), await here.key("few")
        for _ in range(3):
            await send(here, many, jsonl(LINES))
        await until(lambda: len(here.gateway.fleet.jobs) > 20)
        second = await send(here, few, jsonl(LINES[:20]))
        await over(here, few, second)
        order = [job.request.tenant for job in here.gateway.fleet.jobs]
        begun = Counter(between(order, "few"))
        assert begun["few"] == 20
        assert begun["many"] < 45


async def test_a_small_batch_is_soon_done_beside_a_large_one_of_its_own_tenant(
    text: TextModel, folder: Path
) -> None:
    async with serving(text, folder, says([300], delay=0.01), concurrency=2) as gateway:
        large = await create(gateway, jsonl(LINES))
        await until_status(gateway, large, "in_progress")
        for _ in range(3):
            await create(gateway, jsonl(MIDDLE))
        small = await create(gateway, jsonl(SMALL))
        await until_status(gateway, small, "completed")
        # Lines of each size ask for as many tokens as no other's.
        order = [job.request.params.max_tokens for job in gateway.fleet.jobs]
        begun = Counter(between(order, SMALL_TOKENS))
        # The oldest has every other turn.
        assert begun[SMALL_TOKENS] == 20
        assert 0.7 < begun[4] / (begun[MIDDLE_TOKENS] + 20) < 1.6
        assert begun[MIDDLE_TOKENS] < 100


async def test_no_tenant_has_more_batches_open_than_it_may(text: TextModel, folder: Path) -> None:
    async with housed(text, folder, hangs, open=2) as here:
        for name in ("many", "other"):
            await here.tenant(name)
        many, other = await here.key("many"), await here.key("other")
        file_id = await upload(here, many, jsonl(LINES[:1]))
        body = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
        made = [await batch(here, many, file_id) for _ in range(2)]
        refused = await here.post("/v1/batches", many, body)
        assert refused.status_code == 429, refused.text
        assert refused.json()["error"]["code"] == "tenant_not_admitted"
        assert "maximum is 2, [batches] open" in refused.json()["error"]["message"]
        assert int(refused.headers["retry-after"]) <= 60
        await send(here, other, jsonl(LINES[:1]))
        # One that cannot be made takes no share.
        for _ in range(3):
            wrong = await here.post("/v1/batches", other, {**body, "input_file_id": "file-x"})
            assert wrong.status_code == 404
        await send(here, other, jsonl(LINES[:1]))
        path = f"/v1/batches/{made[0]['id']}/cancel"
        assert (await here.post(path, many, {})).status_code == 200
        await over(here, many, made[0]["id"])
        await until(lambda: here.durable.batches.cap._held["many"] == 1)
        await batch(here, many, file_id)
    # What goes on after a start counts, too.
    async with housed(text, folder, hangs, open=2) as here:
        assert (await here.post("/v1/batches", many, body)).status_code == 429


async def test_a_large_input_is_looked_through_in_turns_with_those_of_others(
    text: TextModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The large one needs 100 pieces; without turns the small ones would come behind them all."""
    go_on, pieces = InputValidation.step, Counter[str]()

    def slow(self: InputValidation, seconds: float) -> ValidationResult | None:
        num_lines = self._path.read_bytes().count(b"\n")
        pieces[str(num_lines)] += 1
        time.sleep(0.01)
        return go_on(self, 0.0)

    monkeypatch.setattr(InputValidation, "step", slow)
    async with housed(text, folder, says([300])) as here:
        for name in ("large", "small"):
            await here.tenant(name)
        large, small = await here.key("large"), await here.key("small")
        await send(here, large, jsonl(LINES[:100]))
        await until(lambda: pieces["100"])
        await over(here, small, await send(here, small, jsonl(LINES[:2])))
        assert pieces["2"] == 3
        assert pieces["100"] < 60


async def test_while_nothing_is_taken_one_line_tries_and_all_go_on_soon_after(
    text: TextModel, folder: Path
) -> None:
    tries = list[float]()

    async with serving(text, folder, says([300])) as gateway:
        submit = gateway.fleet.submit

        def counted(*args: Any, **kwargs: Any) -> Any:
            tries.append(time.monotonic())
            return submit(*args, **kwargs)

        gateway.fleet.submit = counted  # type: ignore[method-assign]
        gateway.fleet.refusal = AdmissionPaused("paused", retry_after=86_400)
        made = await create(gateway, jsonl(LINES[:100]))
        await until(lambda: tries)
        await asyncio.sleep(0.6)
        # 32 together, then one after 0.25 s, 0.5 s and so on.
        assert len(tries) <= 32 + 6
        gateway.fleet.refusal = None
        done = await until_status(gateway, made, "completed")
        assert done.request_counts is not None
        assert done.request_counts.completed == 100
