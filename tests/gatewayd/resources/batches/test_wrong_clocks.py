"""Batches under wrong clocks: neither over at once nor kept for ever."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gatewayd.store.clock import StoreClock
from gatewayd.text.text_model import TextModel
from tests.gatewayd.batch_gateway import create, jsonl, line, serving, until_status
from tests.gatewayd.fake_fleet import hangs, says
from tests.gatewayd.store.test_clock import DAY, START, YEAR, Hands
from tests.gatewayd.store_fixtures import copy_of


@pytest.fixture
def folder(fresh_store: Path, tmp_path: Path) -> Path:
    return copy_of(fresh_store, tmp_path / "store")


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    """The clocks of the daemon."""
    hands = Hands()

    def clock(last: float | None) -> StoreClock:
        return hands.clock(last)

    monkeypatch.setattr("gatewayd.daemon.resources.StoreClock", clock)
    return hands


async def test_a_batch_that_goes_on_under_a_clock_a_year_ahead_is_finished(
    text: TextModel, folder: Path, hands: Hands
) -> None:
    async with serving(text, folder, hangs) as gateway:
        batch = await until_status(gateway, await create(gateway, ONE), "in_progress")
        assert batch.expires_at == START + DAY
    hands.wall += YEAR
    async with serving(text, folder, says([300])) as gateway:
        ended = await until_status(gateway, batch, "completed")
        assert ended.request_counts is not None
        assert ended.request_counts.completed == 1


async def test_a_batch_made_under_a_clock_a_year_ahead_has_its_window_and_no_more(
    text: TextModel, folder: Path, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gatewayd.resources.batches.run._LOOK_SECONDS", 0.01)
    hands.wall += YEAR
    async with serving(text, folder, hangs) as gateway:
        batch = await until_status(gateway, await create(gateway, ONE), "in_progress")
        assert batch.expires_at == START + YEAR + DAY
    hands.wall -= YEAR
    async with serving(text, folder, hangs) as gateway:
        async with asyncio.timeout(30):
            while not gateway.fleet.jobs:  # its end is looked for since then
                await asyncio.sleep(0.01)
        for _ in range(24):
            hands.pass_by(3600)
            await asyncio.sleep(0.03)
        still = await gateway.openai.batches.retrieve(batch.id)
        assert still.status == "in_progress"
        hands.pass_by(3601)
        ended = await until_status(gateway, batch, "expired")
        assert ended.error_file_id is not None


ONE = jsonl([line("one")])
