"""Kernel compilation: for every target GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gatewayd_engine.kernels

ROOT = Path(__file__).parents[3]
FOLDER = Path(gatewayd_engine.kernels.__file__).parent


def launched() -> set[str]:
    """Names of what is launched anywhere in the folder: ``_name[grid](``."""
    return {
        name
        for file in FOLDER.rglob("*.py")
        for name in re.findall(r"^ +(\w+)\[\(.*\)\]\($", file.read_text(), re.MULTILINE)
    }


def launched_early() -> set[str]:
    """Names of those among them that may be launched early."""
    launches = r"^ +(\w+)\[\(.*\)\]\((?:\n(?! +\)$).*)*launch_pdl=early"
    return {
        name
        for file in FOLDER.rglob("*.py")
        for name in re.findall(launches, file.read_text(), re.MULTILINE)
    }


@pytest.mark.parametrize("capability", ["90", "100"], ids=["hopper", "blackwell"])
def test_every_kernel_compiles(tmp_path: Path, capability: str) -> None:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "tests.engine.kernels.compiling", capability]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert {name for name, *rest in lines if not rest} == launched()
    assert len(launched()) > 10
    # A kernel launched early waits before it touches anything but weights.
    touched: dict[str, set[str]] = {}
    for mark, name, *names in [line for line in lines if len(line) > 1]:
        assert mark == "early"
        touched.setdefault(name, set()).update(names)
    assert set(touched) == launched_early()
    norms = {"_add_rms_norm", "_norm_heads"}
    assert touched == {name: {"weight"} if name in norms else set() for name in touched}
