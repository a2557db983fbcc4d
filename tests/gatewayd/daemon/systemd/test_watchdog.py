"""Watchdog: progress by a manual clock."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

import pytest

from gatewayd.daemon.systemd.watchdog import LAG_SECONDS, STORE_SECONDS, LivenessProgress, interval
from gatewayd.errors import StoreUnavailable


async def _answers() -> None:
    return None


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def _progress(
    clock: Clock,
    store: Callable[[], Awaitable[object]] = _answers,
    troubles: list[str] | None = None,
) -> LivenessProgress:
    return LivenessProgress(lambda: troubles or [], store, clock)


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "2000000"}, 0.5),
        ({"WATCHDOG_USEC": "30000000"}, 5.0),
        ({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": str(os.getpid())}, 0.5),
        ({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "1"}, None),
    ],
)
def test_signs_are_given_well_within_what_is_asked(
    environ: dict[str, str], seconds: float | None
) -> None:
    assert interval(environ) == seconds


async def test_all_is_well_while_all_moves() -> None:
    progress = _progress(Clock())
    for _ in range(3):
        assert progress.problem() == ""
        await asyncio.sleep(0)
    progress.close()


async def test_a_late_loop_is_trouble_once() -> None:
    clock = Clock()
    progress = _progress(clock)
    for late, is_trouble in ((0.0, False), (LAG_SECONDS + 0.1, True), (0.0, False)):
        asyncio.get_running_loop().call_soon(setattr, clock, "now", clock.now + late)
        await progress.sleep(0.0)
        assert ("event loop was blocked" in progress.problem()) is is_trouble


async def test_engines_are_trouble_as_long_as_they_say_so() -> None:
    troubles = ["engine 0 is silent", "engine 1 is silent"]
    progress = _progress(Clock(), troubles=troubles)
    assert progress.problem() == "engine 0 is silent; engine 1 is silent"
    troubles.clear()
    assert progress.problem() == ""


async def test_a_writer_that_does_not_answer_is_trouble_until_it_does() -> None:
    clock, answer = Clock(), asyncio.Event()
    progress = _progress(clock, answer.wait)
    assert progress.problem() == ""
    await asyncio.sleep(0)
    clock.now += STORE_SECONDS
    assert progress.problem() == ""
    clock.now += 1
    assert progress.problem() == "the store has not answered for 11 s"
    answer.set()
    await asyncio.sleep(0.01)
    assert progress.problem() == ""


@pytest.mark.parametrize("error", [StoreUnavailable("disk full"), RuntimeError("closed")])
async def test_a_store_that_says_no_is_alive(error: Exception) -> None:
    async def refuses() -> None:
        raise error

    clock = Clock()
    progress = _progress(clock, refuses)
    for _ in range(3):
        assert progress.problem() == ""
        await asyncio.sleep(0.01)
        clock.now += 100
    progress.close()
