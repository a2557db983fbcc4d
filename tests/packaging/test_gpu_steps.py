"""GPU kit steps: limited in time, independent of failed or hung ones."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.kit.steps import TOO_LONG, Step

PROGRAM = """
import json, os, sys
from pathlib import Path
from tests.gpu.kit.steps import Step, Steps
steps = Steps(float(sys.argv[2]), Path(sys.argv[1]), os.environ, lambda: "note")
steps.run([Step(**one) for one in json.loads(sys.argv[3])], sys.argv[4:])
print(json.dumps([[r.step.name, r.status, r.seconds, r.lines()] for r in steps.results]))
"""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


def run(out: Path, steps: list[Step], seconds: float = 60, *groups: str) -> dict[str, Any]:
    """In a process of its own: it ends all its children."""
    listed = json.dumps([asdict(step) for step in steps])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(out), str(seconds), listed, *groups],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return {name: (status, took, lines) for name, status, took, lines in json.loads(done.stdout)}


def test_a_step_that_fails_or_hangs_stops_neither_the_rest_nor_the_machine(tmp_path: Path) -> None:
    hangs = f"sleep 60 & setsid bash -c 'trap \"\" TERM; echo $$ > {tmp_path}/pid; sleep 60' & wait"
    left = f"setsid sleep 60 & echo $! > {tmp_path}/left; echo fine"
    began = time.monotonic()
    found = run(
        tmp_path,
        [
            Step("a:fails", 20, "a.log", "echo why; echo >&2; exit 3"),
            Step("a:hangs", 0.5, "a.log", hangs),
            Step("b:leaves", 20, "b.log", left),
            Step("b:works", 20, "b.log", "echo $HOME"),
        ],
    )
    assert time.monotonic() - began < 40
    assert {name: status for name, (status, *_) in found.items()} == {
        "a:fails": 3,
        "a:hangs": TOO_LONG,
        "b:leaves": 0,
        "b:works": 0,
    }
    first, *rest = found["a:fails"][2]
    assert re.fullmatch(r"a:fails                rc 3   +\d s  note", first)
    assert rest == ["    | why"]
    assert re.fullmatch(r"b:works                rc 0   +\d s  note", found["b:works"][2][0])
    for file in ("pid", "left"):
        assert not Path("/proc", (tmp_path / file).read_text().strip()).exists(), file
    log = (tmp_path / "b.log").read_text()
    assert "##### b:works (at " in log
    assert log.endswith(f"limit 20 s): echo $HOME\n{os.environ['HOME']}\n")


def test_time_is_kept_for_what_comes_later_and_a_step_without_time_is_said(tmp_path: Path) -> None:
    found = run(
        tmp_path,
        [
            Step("a:first", 100, "a.log", "true"),
            Step("b:second", 100, "a.log", "true", kept=30),
            Step("c:never", 100, "a.log", "true", kept=500, if_failed="a:first"),
            Step("d:much", 1000, "a.log", "true", kept=60),
        ],
        seconds=100,
    )
    heads = [line for line in (tmp_path / "a.log").read_text().splitlines() if line]
    # Before a:first nothing but what is kept has to go; what is run after a failure keeps nothing.
    limits = [float(re.findall(r"limit (\d+) s\)", line)[0]) for line in heads]
    assert limits == [pytest.approx(40, abs=5), pytest.approx(100, abs=5)]
    assert found["a:first"][0] is None
    assert found["a:first"][2] == ["a:first                skipped, no time"]


def test_what_is_for_a_failure_is_run_then_alone_and_changes_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [
        Step("a:try", 20, "a.log", "exit $BAD"),
        Step("a:instead", 20, "a.log", "true", if_failed="a:try", then={"HOW": "without"}),
        Step("b:rest", 20, "b.log", "echo it goes on $HOW"),
    ]
    monkeypatch.setenv("BAD", "1")
    found = run(tmp_path, steps)
    assert [*found] == ["a:try", "a:instead", "b:rest"]
    assert (tmp_path / "b.log").read_text().endswith("it goes on without\n")
    monkeypatch.setenv("BAD", "0")
    found = run(tmp_path, steps)
    assert [*found] == ["a:try", "b:rest"]
    assert (tmp_path / "b.log").read_text().endswith("it goes on\n")
    assert [*run(tmp_path, steps, 60, "b")] == ["b:rest"]
