"""Full or read-only disk under a store: a real daemon over fake engines keeps serving.

What must hold: no daemon ends for it while it serves, budgets are exact once there is room again,
and a start serves, or says in one sentence why it ends.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gatewayd.store.tables import usage
from tests.daemon.conftest import Running
from tests.daemon.forked_daemons import FAKE_DAEMON
from tests.daemon.small_disk import SmallDisk, small_disk, why_not
from tests.daemon.test_tenants import act, rows, settled
from tests.gatewayd.store_fixtures import copy_of
from tests.gatewayd.tenants.tenant_gateway import bearer

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())

TOKENS = 40
AT_ONCE = 200
FEW = 30
OPERATOR = "an-operators-key"


@pytest.fixture
def prepared(tmp_path: Path, fresh_store: Path) -> tuple[Path, str]:
    """A store with a tenant that has a budget, and its key."""
    store = copy_of(fresh_store, tmp_path / "prepared")
    act(store, "/admin/tenants", {"tenant": "a", "terms": {"most_tokens": 10_000_000}})
    made: Any = act(store, "/admin/keys", {"tenant": "a"})
    return store, made["secret"]


@pytest.fixture
def disk(tmp_path: Path, prepared: tuple[Path, str]) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", "16m") as made:
        shutil.copytree(prepared[0], made.outside / "store")
        yield made


class Daemons:
    """Lives of one daemon on one disk."""

    def __init__(self, disk: SmallDisk, logs: Path) -> None:
        self._disk, self._logs = disk, logs
        self.lives: list[Running] = []

    def start(self) -> Running:
        settings: dict[str, object] = {
            "server.port": 0,
            "test.backoff": 0.05,
            "store.path": self._disk.inside / "store",
            "store.free_bytes": "0",
            "server.api_key": OPERATOR,
        }
        env = {**os.environ, "FAKE_STEP_MS": "5", "FAKE_MAX_RUNNING": "256"}
        arguments = [FAKE_DAEMON, *(f"{key}={value}" for key, value in settings.items())]
        log = self._logs / f"log-{len(self.lives)}"
        self.lives.append(self._disk.start(arguments, env, log))
        return self.lives[-1]


@pytest.fixture
def daemons(disk: SmallDisk, tmp_path: Path) -> Iterator[Daemons]:
    made = Daemons(disk, tmp_path)
    yield made
    for life in made.lives:
        if life.process.poll() is None:
            life.process.kill()
        life.process.wait()


async def wave(
    daemon: Running, key: str, count: int = FEW, at_once: int = AT_ONCE, tokens: int = TOKENS
) -> tuple[Counter[int], int]:
    """So many requests: their answers, and the tokens of those that were answered."""
    told = 0

    async def one(number: int) -> int:
        nonlocal told
        body = {"model": "nano", "prompt": [300 + number], "max_tokens": tokens, "ignore_eos": True}
        answer = await http.post("/v1/completions", json=body, headers=bearer(key))
        if answer.status_code == 200:
            told += answer.json()["usage"]["total_tokens"]
        return answer.status_code

    limits = httpx.Limits(max_connections=at_once)
    async with httpx.AsyncClient(base_url=daemon.url, timeout=30, limits=limits) as http:
        answers = await asyncio.gather(*map(one, range(count)))
    return Counter(answers), told


def check(store: Path, told: int) -> None:
    """The books are exact, and hold no less than clients were told."""
    row = settled(store)
    assert row.used_tokens >= told
    done = [one for one in rows(store, usage) if one.outcome == "length"]
    assert sum(one.prompt_tokens + one.completion_tokens for one in done) >= told


async def test_a_full_disk_ends_no_daemon_and_budgets_stay_exact(
    disk: SmallDisk, daemons: Daemons, prepared: tuple[Path, str], tmp_path: Path
) -> None:
    _, key = prepared
    daemon = daemons.start()
    await asyncio.to_thread(daemon.wait_ready)
    # The log of the database has room then; few marks of running requests were needed.
    _, told = await wave(daemon, key, 250, at_once=4, tokens=1)
    disk.fill()
    answers, tokens = await wave(daemon, key, AT_ONCE)
    assert set(answers) <= {200, 503}, answers
    assert answers[200]
    told += tokens
    answers, _ = await wave(daemon, OPERATOR)  # nobody counts these
    assert answers == {200: FEW}
    assert daemon.is_live()

    # Killed in the middle, with reservations that nobody can settle yet.
    running = asyncio.create_task(wave(daemon, key))
    await asyncio.sleep(0.1)
    daemon.process.send_signal(signal.SIGKILL)
    await asyncio.to_thread(daemon.process.wait)
    await asyncio.gather(running, return_exceptions=True)
    disk.fill()

    daemon = daemons.start()
    await asyncio.to_thread(daemon.wait_ready)
    answers, _ = await wave(daemon, OPERATOR)
    assert answers == {200: FEW}
    answers, tokens = await wave(daemon, key)
    assert set(answers) <= {200, 503}, answers
    told += tokens
    disk.free()
    answers, tokens = await wave(daemon, key)
    assert answers == {200: FEW}
    told += tokens
    assert await asyncio.to_thread(daemon.stop) == 0
    # SQLite takes no way through /proc.
    check(copy_of(disk.outside / "store", tmp_path / "after"), told)
    assert "Traceback" not in "".join(life.log.read_text() for life in daemons.lives)


async def test_a_start_without_a_byte_of_room_says_why_it_ends(
    disk: SmallDisk, daemons: Daemons
) -> None:
    """The database beside which no byte is left, and one that nobody may write."""
    store = disk.outside / "store"
    before = (store / "audit.head").read_bytes()
    for name, reason in (("fill", "the disk is full"), ("ro", "Read-only file system")):
        if name == "fill":
            disk.fill()
        else:
            disk.free()
            disk.remount("ro")
        daemon = daemons.start()
        assert await asyncio.to_thread(daemon.process.wait, 30) == 1
        said = daemon.log.read_text()
        assert "Traceback" not in said
        last = said.splitlines()[-1]
        assert last.startswith("gatewayd: the store ")
        assert reason in last
        assert (store / "audit.head").read_bytes() == before
        assert not (store / "audit.head.part").exists()
