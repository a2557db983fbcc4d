"""``make install``: pip's errors are shown, its noise is not."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_NOWHERE = "file:///nowhere/simple/"


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize(("variable", "verb"), [("PIP", "install"), ("FETCH", "download")])
def test_pip_shows_errors_and_no_warnings(variable: str, verb: str, tmp_path: Path) -> None:
    made = subprocess.run(
        ["make", "-s", f"VENV={sys.prefix}", f"--eval=show:; @echo '$({variable})'", "show"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    command = shlex.split(made.stdout)
    assert verb in command
    # The warnings of a configured index without a package, and the error that it is nowhere.
    done = subprocess.run(
        [*command, "--no-index", "--find-links", _NOWHERE, "gatewayd-that-is-nowhere"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "No matching distribution found for gatewayd-that-is-nowhere" in done.stderr
    assert "WARNING" not in done.stdout + done.stderr
