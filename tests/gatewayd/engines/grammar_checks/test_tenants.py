"""Grammar checkers shared by tenants: turns, separate answers, the price of a crash.

The processes are fakes that count what they are asked, and take as long as the test says.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from gatewayd.config.tables import Config, GuideTable
from gatewayd.engines.grammar_checks import checks as checks_module
from gatewayd.engines.grammar_checks.checks import GuideChecks
from gatewayd.engines.grammar_checks.losses import MOST, SECONDS, CheckerLosses
from gatewayd.engines.grammar_checks.process import CheckLost, CheckProcess
from gatewayd.errors import InvalidRequest, NotAdmitted, TenantNotAdmitted
from gatewayd.fairness.fair_queue import FairQueue
from gatewayd_engine.sampling.guides.check_process import Verdict
from gatewayd_hooks.guiding import GuideSpec
from tests.gatewayd.admin.test_control import control_of
from tests.gatewayd.gateway import until
from tests.virtual_time import leaping_time

BOMB_SECONDS, START_SECONDS = 0.2, 0.1


def spec(text: str) -> GuideSpec:
    return GuideSpec("regex", text)


class Fakes:
    """Stand for the processes: those that check a text with "bomb" in it end."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.started = self.num_busy = self.most_busy = 0
        self.seconds = 0.0

    async def start(self, config: Any) -> tuple[Any, Verdict]:
        self.started += 1
        await asyncio.sleep(START_SECONDS)
        return SimpleNamespace(config=config, check=self.ask, kill=int, stop=self.stop), Verdict()

    async def ask(self, asked: GuideSpec) -> Verdict:
        self.asked.append(asked.text)
        self.num_busy += 1
        self.most_busy = max(self.most_busy, self.num_busy)
        try:
            if "bomb" in asked.text:
                await asyncio.sleep(BOMB_SECONDS)
                raise CheckLost(was_slow=True)
            await asyncio.sleep(self.seconds)
        finally:
            self.num_busy -= 1
        return Verdict()

    async def stop(self) -> None:
        pass


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    made = Fakes()
    monkeypatch.setattr(CheckProcess, "start", made.start)
    return made


@pytest.fixture
async def checks(fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[GuideChecks]:
    """Of a loop whose time leaps: no process and no thread is waited for."""
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(checks_module, "FairQueue", partial(FairQueue, clock=lambda: loop.time()))
    table = GuideTable(processes=2)
    fleet: Any = SimpleNamespace(model=SimpleNamespace(vocab_size=9, eos_token_ids=[0]))
    made = GuideChecks(lambda: table, "", fleet)
    with leaping_time():
        yield made
        await made.close()


async def test_an_answer_is_known_to_the_tenant_that_has_asked_and_to_no_other(
    checks: GuideChecks, fakes: Fakes
) -> None:
    for tenant in ("a", "b", "a", "b", "a"):
        await checks.check(spec("x"), "regex", tenant)
    assert Counter(fakes.asked) == {"x": 2}


async def test_who_asks_the_same_at_once_waits_for_one_check_of_its_own_tenant(
    checks: GuideChecks, fakes: Fakes
) -> None:
    fakes.seconds = 0.05
    tenants = ["a", "b", "a", "b", "a"]
    await asyncio.gather(*(checks.check(spec("x"), "regex", tenant) for tenant in tenants))
    assert Counter(fakes.asked) == {"x": 2}


async def test_one_tenant_evicts_no_answer_of_another_that_has_few(
    checks: GuideChecks, fakes: Fakes
) -> None:
    await checks.check(spec("mine"), "regex", "quiet")
    for at in range(1500):
        await checks.check(spec(f"{at}"), "regex", "loud")
    await checks.check(spec("mine"), "regex", "quiet")
    assert Counter(fakes.asked)["mine"] == 1
    await checks.check(spec("0"), "regex", "loud")
    assert Counter(fakes.asked)["0"] == 2, "the cache is not without end"


async def test_a_small_grammar_waits_for_no_bomb_of_another_tenant(
    checks: GuideChecks, fakes: Fakes
) -> None:
    """Four connections for ever; there is a process for whoever comes next."""
    is_over = False

    async def attack(name: int) -> None:
        at = 0
        while not is_over:
            at += 1
            with pytest.raises((InvalidRequest, NotAdmitted)):
                await checks.check(spec(f"bomb {name} {at}"), "regex", "bomber")
            await asyncio.sleep(0)

    await checks.check(spec("first"), "regex", "quiet")  # active, as it has asked before
    attackers = [asyncio.create_task(attack(name)) for name in range(4)]
    await asyncio.sleep(BOMB_SECONDS + 3 * START_SECONDS)  # what has come up is not its business
    took = []
    for at in range(20):
        began = asyncio.get_running_loop().time()
        await checks.check(spec(f"small {at}"), "regex", "quiet")
        took.append(asyncio.get_running_loop().time() - began)
        await asyncio.sleep(0.02)
    is_over = True
    await asyncio.gather(*attackers)
    assert max(took) < BOMB_SECONDS / 2, took


async def test_who_loses_a_process_pays_for_the_next_one(checks: GuideChecks, fakes: Fakes) -> None:
    """It is there before anybody else asks, and its start is time of the one who needs it."""
    with pytest.raises(InvalidRequest, match="longer to compile"):
        await checks.check(spec("bomb"), "regex", "bomber")
    assert checks.queue.num_running == 1, "its slot is taken until there is another process"
    while checks.queue.num_running:
        await asyncio.sleep(0.01)
    assert fakes.started == 3
    served = checks.queue._share._tenants["bomber"].served
    assert served >= BOMB_SECONDS + 3 * START_SECONDS - 0.01
    began = asyncio.get_running_loop().time()
    await checks.check(spec("small"), "regex", "quiet")
    assert asyncio.get_running_loop().time() - began < START_SECONDS / 2
    assert fakes.started == 3


async def test_who_has_lost_one_leaves_a_process_to_a_newcomer(
    checks: GuideChecks, fakes: Fakes
) -> None:
    with pytest.raises(InvalidRequest):
        await checks.check(spec("bomb"), "regex", "bomber")
    fakes.seconds = 0.05
    await asyncio.gather(*(checks.check(spec(f"{at}"), "regex", "bomber") for at in range(6)))
    assert fakes.most_busy == 1


async def test_a_tenant_that_loses_many_is_asked_to_wait_and_no_other(
    checks: GuideChecks, fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.gatewayd.engines.grammar_checks.test_tenants.BOMB_SECONDS", 0.0)
    monkeypatch.setattr("tests.gatewayd.engines.grammar_checks.test_tenants.START_SECONDS", 0.0)
    await checks.check(spec("known"), "regex", "bomber")
    for at in range(MOST):
        with pytest.raises(InvalidRequest):
            await checks.check(spec(f"bomb {at}"), "regex", "bomber")
    with pytest.raises(TenantNotAdmitted, match="simpler") as refused:
        await checks.check(spec("new"), "regex", "bomber")
    assert refused.value.status == 429
    assert 0 < (refused.value.retry_after or 0) <= SECONDS
    await checks.check(spec("known"), "regex", "bomber")
    await checks.check(spec("new"), "regex", "quiet")
    for at in range(2 * MOST):  # whom nobody can tell apart: one would close it for all
        with pytest.raises(InvalidRequest):
            await checks.check(spec(f"bomb {at}"), "regex")


def test_losses_are_forgotten_after_a_minute() -> None:
    now = 1000.0
    losses = CheckerLosses(lambda: now)
    for _ in range(3 * MOST):
        losses.record("a")
        now += 1
    with pytest.raises(TenantNotAdmitted) as refused:
        losses.check("a")
    assert refused.value.retry_after == SECONDS - MOST
    losses.check("b")
    now += SECONDS - MOST
    losses.check("a")
    now += SECONDS
    losses.record("b")
    assert list(losses._lost) == ["b"]


async def test_more_processes_after_a_reload_take_what_waits_at_once(fakes: Fakes) -> None:
    control, _ = control_of(Config(guide=GuideTable(processes=1)))
    fleet: Any = SimpleNamespace(model=SimpleNamespace(vocab_size=9, eos_token_ids=[0]))
    checks = GuideChecks(lambda: control.config.guide, "", fleet)
    control.on_reload = checks.wake
    fakes.seconds = 30.0
    tasks = [
        asyncio.create_task(checks.check(spec(name), "regex", name)) for name in ("one", "two")
    ]
    await until(lambda: fakes.asked)
    await asyncio.sleep(0.05)
    assert fakes.asked == ["one"]
    await control.reload(Config(guide=GuideTable(processes=3)), "SIGHUP")
    await until(lambda: fakes.asked == ["one", "two"])
    for task in tasks:
        task.cancel()
    await checks.close()
