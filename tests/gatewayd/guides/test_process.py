"""A process that dies at its start is no reason to do without its confinement."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gatewayd.config import GuideTable
from gatewayd.guides import process
from gatewayd.guides.checks import GuideChecks
from gatewayd_engine import embedded
from gatewayd_hooks import children
from gatewayd_hooks.guiding import GuideSpec

DIES = """
import os, pathlib, sys
died = pathlib.Path(sys.argv.pop(1))
with died.open("a") as file:
    file.write("x")
if died.stat().st_size <= int(sys.argv.pop(1)):
    os.abort()
from gatewayd_engine import guide_confined
sys.exit(guide_confined.main())
"""


@pytest.mark.parametrize(("deaths", "unconfined"), [(0, 0), (1, 0), (9, 1)])
async def test_one_death_is_tried_again_confined(
    deaths: int, unconfined: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Sequence[str]] = []
    start = children.start_async

    async def noted(command: Sequence[str], **options: Any) -> asyncio.subprocess.Process:
        started.append(command)
        return await start(command, **options)

    monkeypatch.setattr(children, "start_async", noted)
    dies = children.python("-c", DIES, str(tmp_path / "died"), str(deaths))
    monkeypatch.setattr(process, "CONFINED", dies)
    monkeypatch.setattr(process, "_tell", lambda reason: None)
    fleet: Any = SimpleNamespace(model=SimpleNamespace(vocab_size=4096, eos_token_ids=[0, 2]))
    table = GuideTable(compile_seconds=30, processes=1)
    checks = GuideChecks(lambda: table, str(embedded.folder("nano")), fleet)
    try:
        await checks.check(GuideSpec("regex", "[a-c]{3}"), "regex")
    finally:
        await checks.close()
    plain = [command for command in started if tuple(command) == tuple(process.COMMAND)]
    assert len(plain) == unconfined
    assert len(started) - len(plain) == min(deaths, 1) + 1
