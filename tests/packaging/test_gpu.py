"""GPU machine: the project on the path but not installed."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from tests.gpu import installed

ROOT = Path(__file__).parents[2]


def test_plugins_are_found_without_an_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = {(p.name, p.value) for p in metadata.entry_points(group="gatewayd")}
    monkeypatch.setattr(metadata, "entry_points", lambda group: ())
    installed.write(tmp_path)
    code = (
        "from importlib import metadata;"
        "print(*sorted(f'{p.name} {p.value}' for p in metadata.entry_points(group='gatewayd')),"
        " sep='\\n')"
    )
    found = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(tmp_path)},
    )
    assert {tuple(line.split()) for line in found.stdout.splitlines()} == here


def test_gpu_tests_are_collected_without_the_plugins_of_pytest() -> None:
    without = ["-p", "no:asyncio", "-p", "no:timeout", "-p", "no:xdist"]
    options = ["-c", "tests/gpu/pytest.ini", "--rootdir", ".", "--collect-only", "-q", "tests/gpu"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *without, *options],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    # 5: all of them are skipped before they are collected.
    assert done.returncode in (0, 5), done.stdout + done.stderr
