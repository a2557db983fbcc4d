"""Live keys: what runs with a key or secret ends when it does, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gatewayd.errors import Unauthorized
from gatewayd.store.tables import DEFAULT_TENANT, budgets, tenants
from gatewayd.tenants import directory as directories
from gatewayd.tenants.directory import Directory, access_rules
from gatewayd.tenants.principal import Lease
from gatewayd.tenants.records import AccessRows
from gatewayd.tenants.tamper_evidence.secret import ServerSecret
from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import hangs_after, says
from tests.gatewayd.gateway import CHAT, until
from tests.gatewayd.store_fixtures import copy_of
from tests.gatewayd.tenants.tenant_gateway import Town, bearer, town

CHATS = "/v1/chat/completions"
BACKGROUND = {"model": "nano", "input": "hi", "background": True}


@pytest.fixture
def folder(fresh_store: Path, tmp_path: Path) -> Path:
    return copy_of(fresh_store, tmp_path / "store")


def tenant_row(name: str) -> Any:
    """As the store has it, of one that was promised nothing."""
    columns = [*tenants.c.keys(), *budgets.c.keys()]
    return SimpleNamespace(**dict.fromkeys(columns) | {"id": name, "weight": 1.0})


@dataclass
class Held:
    """Something that runs with a secret; ``number`` None for the key's own rights."""

    key: int
    number: int | None
    lease: Lease
    is_over: bool = False


class Model:
    """Keys by brute force: every secret ever made, and until when it is good."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 1000.0
        self.secret = ServerSecret(bytes(32))
        self.directory = Directory(self.secret, SimpleNamespace(), wall=lambda: self.now)  # type: ignore[arg-type]
        self.expires: dict[int, int | None] = {}
        self.revoked: set[int] = set()
        self.secrets: dict[int, list[float]] = {}  # until when each is good
        self.held: list[Held] = []
        self.load()

    def given(self, key: int, number: int) -> bytes:
        return f"gw_{key:012x}_{number:043d}".encode()

    def is_good(self, key: int, number: int | None) -> bool:
        expires = self.expires[key]
        if key in self.revoked or (expires is not None and expires <= self.now):
            return False
        return number is None or self.now < self.secrets[key][number]

    def load(self) -> None:
        found = []
        for key, ends in self.secrets.items():
            last = len(ends) - 1
            old = last - 1 if last and ends[last - 1] > 0 else None
            digest = {
                n: self.secret.digest(f"{n:043d}".encode()) for n in (last, old) if n is not None
            }
            row = SimpleNamespace(
                id=f"{key:012x}",
                tenant="a",
                scopes=["infer"],
                digest=digest[last],
                old_digest=None if old is None else digest[old],
                old_until=None if old is None else int(ends[old]),
                expires_at=self.expires[key],
                revoked_at=1 if key in self.revoked else None,
            )
            found.append(row)
        two = [tenant_row(DEFAULT_TENANT), tenant_row("a")]
        self.directory.load(access_rules(AccessRows(two, found, [])))  # type: ignore[arg-type]

    def change(self) -> None:
        """Something that an operator does, or the clock."""
        rng, key = self.rng, self.rng.choice([*self.secrets, None])
        if key is None:
            key = len(self.secrets)
            self.secrets[key] = [float("inf")]
            self.expires[key] = int(self.now + rng.randint(1, 60)) if rng.random() < 0.5 else None
        elif (chance := rng.random()) < 0.3:
            ends = self.secrets[key]
            for number in range(len(ends) - 1):
                ends[number] = 0
            ends[-1] = int(self.now + rng.randint(1, 30)) if rng.random() < 0.6 else 0
            ends.append(float("inf"))
        elif chance < 0.35:
            self.revoked.add(key)
        else:
            self.now += rng.choice((0.5, 3, 10, -8))
            self.directory._end_expired()
            return
        self.load()

    def hold(self) -> None:
        """Send something with a secret, which must be let in just where it is good."""
        key = self.rng.choice(list(self.secrets))
        number = self.rng.choice([*range(len(self.secrets[key])), None])
        try:
            if number is None:
                principal = self.directory.principal_of("a", f"{key:012x}")
            else:
                principal = self.directory.authenticate(self.given(key, number))
        except Unauthorized:
            assert not self.is_good(key, number)
            return
        assert self.is_good(key, number), (key, number)
        assert principal.lease is not None
        assert not principal.lease.is_over
        principal.check_use("nano")
        self.held.append(Held(key, number, principal.lease))

    def check(self) -> None:
        for one in self.held:
            one.is_over |= not self.is_good(one.key, one.number)
            assert one.lease.is_over == one.is_over, one


async def test_what_is_held_is_over_just_when_its_secret_is() -> None:
    """Keys that expire, are rotated with and without overlap, and revoked; clocks put back."""
    over = 0
    for seed in range(20):
        model = Model(seed)
        model.change()
        for _ in range(100):
            model.change()
            model.check()
            model.hold()
        over += sum(one.is_over for one in model.held)
    assert over > 200


@contextlib.asynccontextmanager
async def streamed(here: Town, key: str) -> AsyncIterator[AsyncIterator[str]]:
    """The lines of a stream that goes on, behind its first."""
    body = {**CHAT, "stream": True}
    async with here.gateway.http.stream("POST", CHATS, json=body, headers=bearer(key)) as stream:
        lines = stream.aiter_lines()
        assert await anext(lines)
        yield lines


async def rest_of(lines: AsyncIterator[str], seconds: float = 30.0) -> str:
    async with asyncio.timeout(seconds):
        return "".join([line async for line in lines])


async def test_a_keys_expiry_ends_its_streams_at_their_time(
    text: TextModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directories, "_LOOK_SECONDS", 60.0)
    async with town(text, folder, hangs_after([300, 301])) as here:
        await here.tenant("a")
        key, other = await here.key("a", seconds=2), await here.key("a", seconds=3600)
        ends_at = int(time.time()) + 2
        async with streamed(here, key) as cut, streamed(here, other):
            rest = await rest_of(cut)
            assert -1.1 < time.time() - ends_at < 30
            assert "key_expired" in rest
            await until(lambda: here.gateway.fleet.jobs[0].gone.is_set())
            assert not here.gateway.fleet.jobs[1].gone.is_set()


async def test_a_clock_that_is_set_ahead_ends_what_has_expired_by_it(
    text: TextModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directories, "_LOOK_SECONDS", 0.05)
    async with town(text, folder, hangs_after([300])) as here:
        await here.tenant("a")
        key = await here.key("a", seconds=3600)
        async with streamed(here, key) as cut:
            directory = here.durable.tenancy.directory
            monkeypatch.setattr(directory, "_wall", lambda: time.time() + 4000)
            assert "key_expired" in await rest_of(cut)
        monkeypatch.setattr(directory, "_wall", time.time)
        here.gateway.fleet.script = says([300])
        assert (await here.post(CHATS, key, CHAT)).status_code == 200, "it was put back"


async def test_a_rotation_ends_the_streams_of_the_old_secret_only(
    text: TextModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directories, "_LOOK_SECONDS", 0.05)
    async with town(text, folder, hangs_after([300])) as here:
        await here.tenant("a")
        first = await here.key("a")
        rotate = f"/admin/keys/{first.split('_')[1]}/rotate"
        background = await here.post("/v1/responses", first, BACKGROUND)
        async with streamed(here, first) as old:
            second = (await here.act("POST", rotate, {"overlap_seconds": 60}))["secret"]
            async with streamed(here, second) as new:
                await asyncio.sleep(0.1)
                assert not here.gateway.fleet.jobs[1].gone.is_set(), "it overlaps"
                directory = here.durable.tenancy.directory
                monkeypatch.setattr(directory, "_wall", lambda: time.time() + 61)
                assert "was rotated" in await rest_of(old)
                assert not here.gateway.fleet.jobs[2].gone.is_set()
                third = (await here.act("POST", rotate, {}))["secret"]
                assert "was rotated" in await rest_of(new)
        async with streamed(here, third):
            url = f"/v1/responses/{background.json()['id']}"
            answer = await here.gateway.http.get(url, headers=bearer(third))
            assert answer.json()["status"] == "failed", "it was begun with the first secret"
            # What goes on with the key's rights, as lines of batches, is the key's.
            lease = directory.principal_of("a", first.split("_")[1]).lease
            assert lease is not None
            assert not lease.is_over
            await here.revoke(third)
            assert lease.is_over
