"""Grammar check process: failed starts and confinement never skip the check."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gatewayd.cli.doctor import service
from gatewayd.config.tables import Config, GuideTable
from gatewayd.engines.grammar_checks import process
from gatewayd.engines.grammar_checks.checks import GuideChecks
from gatewayd.engines.grammar_checks.process import CheckLost, CheckProcess
from gatewayd.errors import StrategyUnavailable
from gatewayd_engine.model import embedded
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.sampling.guides.check_process import CheckConfig
from gatewayd_hooks.guiding import GuideSpec
from gatewayd_hooks.helpers import children
from tests.engine.process.test_sandbox import has_landlock

TOO_MANY = os.strerror(errno.E2BIG)

DIES = """
import os, pathlib, sys
died = pathlib.Path(sys.argv.pop(1))
with died.open("a") as file:
    file.write("x")
if died.stat().st_size <= int(sys.argv.pop(1)):
    os.abort()
from gatewayd_engine.sampling.guides import check_sandboxed
sys.exit(check_sandboxed.main())
"""


FULL = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None)
libc.prctl(38, 1, 0, 0, 0)
rules = libc.syscall(444, struct.pack("Q", 1 << 11), ctypes.c_size_t(8), 0)
while libc.syscall(446, rules, 0) == 0:  # as many as a process may have
    pass
os.execv(sys.executable, [sys.executable, "-P", "-m", sys.argv[1], *sys.argv[2:]])
"""
"""Starts a module where Landlock is there and takes nothing more."""

LESS = """
import sys
from gatewayd_engine.process import sandbox
from gatewayd_engine.sampling.guides import check_sandboxed
def none(*_, **__):
    raise sandbox.SandboxUnavailable("the kernel has no Landlock")
setattr(sandbox, sys.argv.pop(1), none)
sys.exit(check_sandboxed.main())
"""


SHORT = """
import errno, sys
from gatewayd_engine.sampling.guides import check_process, check_sandboxed
def short(config):
    try:
        raise {error}
    except Exception as error:
        raise ValueError("the tokenizer cannot be read") from error
check_process._open = short
sys.exit(check_sandboxed.main())
"""
"""The guide cannot be opened, for a reason that may pass."""


def linked(folder: Path) -> Path:
    """A checkpoint of links to files that only this user may read."""
    folder.chmod(0o700)
    model, elsewhere = folder / "model", folder / "elsewhere"
    model.mkdir()
    shutil.copytree(embedded.folder("nano"), elsewhere)
    for file in elsewhere.iterdir():
        (model / file.name).symlink_to(file)
    return model


def snapshot_of_links(folder: Path) -> Path:
    """A model in a Hugging Face cache, whose contents are elsewhere and readable by this user."""
    folder.chmod(0o700)
    model = folder / "models--o--a" / "snapshots" / "1"
    blobs, elsewhere = model.parent.parent / "blobs", folder / "home" / "contents"
    for made in (model, blobs, elsewhere):
        made.mkdir(parents=True)
    for file in embedded.folder("nano").iterdir():
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        shutil.copy(file, elsewhere / digest)
        (blobs / digest[:40]).symlink_to(elsewhere / digest)
        (model / file.name).symlink_to(f"../../blobs/{digest[:40]}")
    return model


class Watched:
    """Checks whose confined processes are started by another command."""

    def __init__(self, command: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: list[Sequence[str]] = []
        self.told: list[str] = []
        start = children.start_async

        async def noted(command: Sequence[str], **options: Any) -> asyncio.subprocess.Process:
            self.started.append(command)
            return await start(command, **options)

        monkeypatch.setattr(children, "start_async", noted)
        monkeypatch.setattr(process, "CONFINED", tuple(command))
        monkeypatch.setattr(process, "_warn_unsandboxed", self.told.append)

    @property
    def unconfined(self) -> int:
        """How many were started without."""
        return sum(tuple(command) == tuple(process.COMMAND) for command in self.started)

    async def check(self, folder: str = str(embedded.folder("nano"))) -> None:
        fleet: Any = SimpleNamespace(model=SimpleNamespace(vocab_size=4096, eos_token_ids=[0, 2]))
        table = GuideTable(compile_seconds=30, processes=1)
        checks = GuideChecks(lambda: table, folder, fleet)
        try:
            await checks.check(GuideSpec("regex", "[a-c]{3}"), "regex")
        finally:
            await checks.close()


@pytest.mark.parametrize("deaths", [0, 1, 9])
async def test_one_death_is_tried_again_and_always_confined(
    deaths: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dies = children.python("-c", DIES, str(tmp_path / "died"), str(deaths))
    watched = Watched(dies, monkeypatch)
    if deaths > 1:
        with pytest.raises(StrategyUnavailable):
            await watched.check()
        assert "cannot check grammars: the checker process ended" in caplog.text
        assert f"status {-signal.SIGABRT}" in caplog.text
    else:
        await watched.check()
    assert (len(watched.started), watched.unconfined) == (min(deaths, 1) + 1, 0)
    assert watched.told == []


CLOSES = """
import os, signal, sys, time
os.close(1)
time.sleep(float(sys.argv[1]))
os.kill(os.getpid(), signal.SIGALRM)
"""


@pytest.mark.parametrize(("seconds", "status"), [(0.2, -signal.SIGALRM), (60, -signal.SIGKILL)])
async def test_a_process_that_closes_its_output_has_its_own_status_if_it_ends(
    seconds: float, status: int
) -> None:
    """A kill at once would take the place of it."""
    config = CheckConfig(StrategyChoice("none"), "/", 1, [], 1.0, 1)
    with pytest.raises(CheckLost, match=f"status {status}") as lost:
        await CheckProcess._start(config, children.python("-c", CLOSES, str(seconds)))
    assert lost.value.was_slow == (status == -signal.SIGALRM)


@pytest.mark.skipif(not has_landlock(), reason="this kernel has no Landlock")
async def test_where_confinement_fails_nothing_is_compiled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    full = children.python("-c", FULL, "gatewayd_engine.sampling.guides.check_sandboxed")
    watched = Watched(full, monkeypatch)
    with pytest.raises(StrategyUnavailable):
        await watched.check()
    assert (len(watched.started), watched.unconfined) == (2, 0)
    assert f"could not be confined: Landlock: {TOO_MANY}" in caplog.text


@pytest.mark.parametrize("means", ["_restrict_files", "_filter_calls"])
async def test_where_the_system_lacks_a_means_grammars_are_compiled_and_it_is_said(
    means: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(children.python("-c", LESS, means), monkeypatch)
    await watched.check()
    assert len(watched.started) == 1
    assert watched.told == ["the kernel has no Landlock"]


@pytest.mark.skipif(not has_landlock(), reason="this kernel has no Landlock")
async def test_a_guide_that_needs_more_than_its_files_has_it_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokenizer lies behind a link to where no checkpoint may lead."""
    watched = Watched(process.CONFINED, monkeypatch)
    await watched.check(str(linked(tmp_path)))
    assert (len(watched.started), watched.unconfined) == (2, 1)
    (said,) = watched.told
    assert "needs more than its own files" in said


@pytest.mark.skipif(not has_landlock(), reason="this kernel has no Landlock")
async def test_contents_of_a_cache_that_are_stored_elsewhere_are_read_by_a_confined_checker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As tools do that share contents between models and users."""
    watched = Watched(process.CONFINED, monkeypatch)
    await watched.check(str(snapshot_of_links(tmp_path)))
    assert (len(watched.started), watched.unconfined, watched.told) == (1, 0, [])


@pytest.mark.parametrize(
    "error", ["MemoryError", 'RuntimeError("can\'t start new thread")', "OSError(errno.EMFILE, '')"]
)
async def test_a_guide_that_is_short_of_memory_is_opened_confined_or_not_at_all(
    error: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watched = Watched(children.python("-c", SHORT.format(error=error)), monkeypatch)
    with pytest.raises(StrategyUnavailable):
        await watched.check()
    assert (len(watched.started), watched.unconfined) == (2, 0)
    assert "cannot check grammars: the checker process ended with status 1" in caplog.text


@pytest.mark.skipif(not has_landlock(), reason="this kernel has no Landlock")
def test_the_doctor_says_what_becomes_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = service.confinement(Config())
    assert (found.state, found.text.partition(" are")[0]) == ("ok", "grammar checkers and pulls")
    without = service.confinement(Config(guide=GuideTable(strategy="none")))
    assert (without.state, without.text.partition(" are")[0]) == ("ok", "pulls")
    python = children.python
    monkeypatch.setattr(children, "python", lambda _, *rest: python("-c", FULL, *rest))
    found = service.confinement(Config())
    assert found.state == "failure"
    assert TOO_MANY in found.text
    lacking = "print('no Landlock'); raise SystemExit(2)"
    monkeypatch.setattr(children, "python", lambda *_: python("-c", lacking))
    found = service.confinement(Config())
    assert (found.state, found.text.partition(":")[0]) == ("warning", "no Landlock")
    monkeypatch.setattr(children, "python", lambda *_: python("-c", "raise SystemExit(3)"))
    assert service.confinement(Config()).state == "failure"
