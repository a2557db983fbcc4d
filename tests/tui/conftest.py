"""Fixtures: a fake daemon per module, and consoles that watch it."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot, WaitForScreenTimeout

from gatewayd_tui.app import Console
from gatewayd_tui.client import DaemonSource
from tests.tui.fake_daemon import FakeDaemon, serving

Watching = Callable[..., AbstractAsyncContextManager[tuple[Console, Pilot[None]]]]


_GRANULARITY, _IDLE, _LONGEST = 0.005, 0.0005, 1.0


async def wait_for_idle(min_sleep: float = 0.0, max_sleep: float = _LONGEST) -> None:
    """Wait until the console's thread has nothing left to do.

    Textual's own asks whether the whole process computes, in steps of 20 ms: beside the threads of
    a fake daemon each key took up to two seconds.
    """
    deadline = time.monotonic() + max_sleep
    while time.monotonic() < deadline:
        before = time.thread_time()
        await asyncio.sleep(_GRANULARITY)
        if time.thread_time() - before < _IDLE:
            return


@pytest.fixture(autouse=True)
def _own_idleness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("textual.app.wait_for_idle", wait_for_idle)
    monkeypatch.setattr("textual.pilot.wait_for_idle", wait_for_idle)


@pytest.fixture(autouse=True)
def _no_widget_that_is_gone_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is removed before it comes to it never says that it has processed all.

    The pilot would wait for it for half a minute, and raise.
    """
    wait = Pilot._wait_for_screen

    async def patient(pilot: Pilot[None], *_: object, **__: object) -> bool:
        with contextlib.suppress(WaitForScreenTimeout):
            return await wait(pilot, 10.0)
        return True

    monkeypatch.setattr(Pilot, "_wait_for_screen", patient)


@pytest.fixture(scope="module")
def served() -> Iterator[FakeDaemon]:
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder, "admin.sock")) as fake:
        yield fake


@pytest.fixture
def daemon(served: FakeDaemon) -> FakeDaemon:
    served.reset()
    return served


@pytest.fixture
def watching(daemon: FakeDaemon) -> Watching:
    """A console that has seen its first snapshot."""

    @asynccontextmanager
    async def watch(
        size: tuple[int, int] = (120, 40), **options: Any
    ) -> AsyncIterator[tuple[Console, Pilot[None]]]:
        toasts = options.pop("notifications", False)
        console = Console(options.pop("source", None) or DaemonSource(daemon.path), **options)
        async with console.run_test(size=size, notifications=toasts) as pilot:
            await until(pilot, lambda: console.shown.snapshot is not None)
            yield console, pilot

    return watch


async def until(pilot: Pilot[None], holds: Callable[[], object]) -> None:
    """Wait for a condition, for thirty seconds at most."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if holds():
            await pilot.pause()
            return
        await pilot.pause(0.01)
    raise AssertionError("it never came")


def said(console: Console) -> list[str]:
    """What messages have come up."""
    return [each.message for each in console._notifications]


async def settled(pilot: Pilot[None], console: Console, words: str) -> str:
    """The body when some words are on it and it has not changed for a moment."""
    before = ""
    for _ in range(300):
        now = body_of(console)
        if words in now and now == before:
            return now
        before = now
        await pilot.pause(0.03)
    raise AssertionError(f"{words} never came, or never stood still")


def text_of(console: Console) -> str:
    """The screen as text, without the blanks at the ends of lines."""
    strips = console.screen._compositor.render_strips()
    lines = ("".join(segment.text for segment in strip).rstrip() for strip in strips)
    return "\n".join(lines) + "\n"


def body_of(console: Console) -> str:
    """The same without the line of screens, which others add to."""
    lines = text_of(console).splitlines()
    return "\n".join([lines[0], *lines[2:]])
