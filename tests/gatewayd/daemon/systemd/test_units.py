"""Unit files: accepted by systemd, with a small privilege set."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gatewayd.config.tables import Config
from gatewayd.daemon.systemd.install import Installer, InstallError
from gatewayd.daemon.systemd.units import (
    MARK,
    UNITS,
    every_path,
    own_program,
    source,
    unit_files,
    why_unusable,
)

needs_analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze"
)
SYSTEM = "etc/systemd/system"


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def root(tmp_path: Path, said: list[str]) -> Path:
    """A machine with the service, also for GPUs."""
    Installer(tmp_path, False, said.append).install(unit_files(sys.executable, gpu=True))
    return tmp_path


def analyze(*words: str) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@needs_analyze
@pytest.mark.parametrize("unit", UNITS)
def test_systemd_finds_nothing_wrong(root: Path, unit: str) -> None:
    done = analyze("verify", str(root / SYSTEM / unit))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@needs_analyze
@pytest.mark.parametrize("unit", ["gatewayd.service", "gatewayd@.service"])
@pytest.mark.parametrize("gpu", [False, True])
def test_the_service_is_not_more_exposed_than_two(tmp_path: Path, unit: str, gpu: bool) -> None:
    Installer(tmp_path, False, lambda _: None).install(unit_files(sys.executable, gpu=gpu))
    path = tmp_path / SYSTEM / unit
    # The drop-in lies beside the unit and is read with it.
    done = analyze("security", "--no-pager", "--offline=true", "--threshold=20", str(path))
    assert done.returncode == 0, done.stdout
    assert analyze("security", "--offline=true", "--threshold=5", str(path)).returncode == 1


def test_no_line_has_a_comment_behind_it() -> None:
    for file in source().rglob("*"):
        for line in file.read_text().splitlines() if file.is_file() else []:
            assert line.startswith("#") or " #" not in line, line


def test_the_template_is_the_service_with_names_of_its_own() -> None:
    def settings(unit: str) -> list[str]:
        text = (source() / unit).read_text()
        return [line for line in text.splitlines() if not line.startswith("#")]

    for one, other in zip(settings(UNITS[0]), settings(UNITS[1]), strict=True):
        if one != other:
            assert "%i" in other
            assert re.sub(r"[-/ ]?\(?%i\)?", "", other) == one


def test_the_unit_waits_for_the_drain_and_leaves_engines_to_the_daemon() -> None:
    text = (source() / "gatewayd.service").read_text()
    (stop,) = re.findall(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert int(stop) >= Config().server.drain_seconds + 10
    (files,) = re.findall(r"^LimitNOFILE=(\d+)$", text, re.MULTILINE)
    assert int(files) > Config().server.connections
    for line in ("KillMode=mixed", "Type=notify", "RestartPreventExitStatus=2 78", "LimitCORE=0"):
        assert f"\n{line}\n" in text


def test_every_program_is_the_one_that_installs(root: Path) -> None:
    for unit in ("gatewayd.service", "gatewayd@.service"):
        text = (root / SYSTEM / unit).read_text()
        assert text.startswith(MARK)
        assert f"ExecStart={sys.executable} serve --config " in text
        assert f"ExecReload={sys.executable} config check --config " in text
        assert "/usr/bin/gatewayd" not in text


def test_a_second_time_changes_nothing(root: Path, said: list[str]) -> None:
    assert {line.split()[0] for line in said} == {"write"}
    said.clear()
    Installer(root, False, said.append).install(unit_files(sys.executable, gpu=True))
    assert {line.split()[0] for line in said} == {"unchanged"}


def test_a_dry_run_says_the_same_and_writes_nothing(tmp_path: Path, said: list[str]) -> None:
    Installer(tmp_path, True, said.append).install(unit_files(sys.executable, gpu=True))
    assert len(said) == len(every_path())
    assert list(tmp_path.iterdir()) == []


def test_what_somebody_else_wrote_is_neither_replaced_nor_deleted(
    tmp_path: Path, said: list[str]
) -> None:
    theirs = tmp_path / SYSTEM / "gatewayd.service"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("[Service]\nExecStart=/bin/true\n")
    installer = Installer(tmp_path, False, said.append)
    with pytest.raises(InstallError, match=r"not replaced: \S+/gatewayd.service$"):
        installer.install(unit_files(sys.executable, gpu=False))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [theirs]
    installer.uninstall(every_path(), UNITS)
    assert theirs.exists()
    assert said == [f"keep {theirs}: not written by gatewayd"]


def test_uninstall_takes_out_what_was_written_and_no_more(root: Path, said: list[str]) -> None:
    mine = root / SYSTEM / "gatewayd.service.d" / "50-mine.conf"
    mine.write_text("[Service]\n")
    said.clear()
    Installer(root, False, said.append).uninstall(every_path(), UNITS)
    assert [path for path in root.rglob("*") if path.is_file()] == [mine]
    assert len(said) == len(every_path())
    assert not (root / SYSTEM / "gatewayd@.service.d").exists()
    assert (root / "etc/sysusers.d").is_dir()


def test_a_program_that_the_sandbox_hides_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "gatewayd"
    assert why_unusable(str(program)) == f"{program} is not an executable"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    if str(tmp_path).startswith("/tmp/"):
        assert "is below /tmp, which is hidden from the unit" in why_unusable(str(program))
    assert own_program().endswith("/bin/gatewayd")
