"""Grammar checks: run in real processes that may die, and nothing else does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from gatewayd.config.tables import GuideTable
from gatewayd.engines.grammar_checks.checks import GuideChecks
from gatewayd.engines.grammar_checks.process import CheckProcess
from gatewayd.errors import InvalidRequest, StrategyUnavailable
from gatewayd_engine.model import embedded
from gatewayd_engine.sampling.guides.check_process import Verdict
from gatewayd_hooks.guiding import GuideSpec
from tests.gatewayd.gateway import until

GOOD = GuideSpec("regex", "[a-c]{3}")
HEAVY = GuideSpec("regex", "|".join(f"[a-z]{{{n},{2 * n}}}x" for n in range(50, 400)))

LARGE = GuideSpec("choice", json.dumps([f"{i**5 % 999983:x}" for i in range(10_000)]))


class Settings:
    """A configuration that changes, and the processes that were started for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.table = GuideTable(compile_seconds=30)
        self.started: list[CheckProcess] = []
        fleet: Any = SimpleNamespace(model=SimpleNamespace(vocab_size=4096, eos_token_ids=[0, 2]))
        self.checks = GuideChecks(lambda: self.table, str(embedded.folder("nano")), fleet)
        start = CheckProcess.start

        async def noted(*args: Any) -> Any:
            process, verdict = await start(*args)
            self.started.append(process)
            return process, verdict

        monkeypatch.setattr(CheckProcess, "start", noted)

    def change(self, **fields: Any) -> None:
        self.table = GuideTable.model_validate({**self.table.model_dump(), **fields})


@pytest.fixture
async def settings(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Settings]:
    made = Settings(monkeypatch)
    yield made
    await made.checks.close()


async def test_what_nobody_could_follow_is_refused_before(settings: Settings) -> None:
    """It is compiled and begun, and ends at the first name."""
    wide = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(900)}}
    with pytest.raises(InvalidRequest, match="json_schema") as refused:
        await settings.checks.check(GuideSpec("json_schema", json.dumps(wide)), "json_schema")
    assert refused.value.code == "invalid_grammar"
    circle = '{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}'
    with pytest.raises(InvalidRequest, match="allows nothing"):
        await settings.checks.check(GuideSpec("json_schema", circle), "json_schema")


async def test_what_can_be_compiled_is_let_through(settings: Settings) -> None:
    found = await asyncio.gather(*(settings.checks.check(GOOD, "regex") for _ in range(20)))
    assert found == [GOOD] * 20
    with pytest.raises(InvalidRequest) as refused:
        await settings.checks.check(GuideSpec("regex", "[a-"), "structured_outputs.regex")
    assert refused.value.param == "structured_outputs.regex"
    assert refused.value.code == "invalid_grammar"
    assert str(refused.value).startswith("structured_outputs.regex: ")
    # One process for them all: they came one after the other, or together and alike.
    assert len(settings.started) == 1


async def test_one_that_takes_too_long_takes_its_process_alone(settings: Settings) -> None:
    settings.change(compile_seconds=0.0005)
    with pytest.raises(InvalidRequest, match=r"longer to compile than the limit of 0\.0005 s"):
        await settings.checks.check(HEAVY, "grammar")
    settings.change(compile_seconds=30)
    assert await settings.checks.check(GOOD, "regex") == GOOD
    await until(lambda: len(settings.started) == 4)  # a spare, and what was lost, and one by now
    assert settings.started[0]._child.returncode is not None
    assert settings.started[-1]._child.returncode is None


async def test_one_that_takes_too_much_memory_too(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.change(compile_memory="1MiB")
    with pytest.raises(InvalidRequest, match="memory"):
        await settings.checks.check(LARGE, "guided_choice")
    settings.change(compile_memory="512MiB")
    assert await settings.checks.check(GOOD, "regex") == GOOD


async def test_without_a_guide_it_is_refused(settings: Settings) -> None:
    settings.change(strategy="none")
    with pytest.raises(InvalidRequest, match="no guide") as refused:
        await settings.checks.check(GOOD, "guided_regex")
    assert refused.value.code == "unsupported_parameter"
    settings.change(strategy="unheard_of")
    with pytest.raises(StrategyUnavailable):
        await settings.checks.check(GOOD, "guided_regex")


async def test_nobody_waits_for_those_whose_clients_have_left(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.change(processes=1)
    asked: list[GuideSpec] = []
    may_end = asyncio.Event()

    async def ask(self: CheckProcess, spec: GuideSpec) -> Verdict:
        asked.append(spec)
        await may_end.wait()
        return Verdict()

    monkeypatch.setattr(CheckProcess, "check", ask)
    bad = [GuideSpec("regex", f"a{{{i}}}b") for i in range(20)]
    waiting = [asyncio.create_task(settings.checks.check(spec, "regex")) for spec in bad]
    again = asyncio.create_task(settings.checks.check(bad[7], "regex"))
    async with asyncio.timeout(30):
        while not asked:
            await asyncio.sleep(0.01)
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    good = asyncio.create_task(settings.checks.check(GOOD, "regex"))
    await asyncio.sleep(0)
    back = asyncio.create_task(settings.checks.check(bad[3], "regex"))
    await asyncio.sleep(0)
    may_end.set()
    assert [*await asyncio.gather(again, good, back)] == [bad[7], GOOD, bad[3]]
    assert asked[0] == bad[0], "what had begun comes to its end"
    assert set(asked[1:]) == {bad[7], GOOD, bad[3]}
    assert len(asked) == 4
    assert len(settings.started) == 1
