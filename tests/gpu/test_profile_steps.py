"""The profile of steps: what it makes of a trace, and a try on the CPU."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.profile_steps import Launch, launches_of, report, rows_of

ROOT = Path(__file__).parents[2]
LAUNCHES = [Launch("gemm", 0.0, 30.0), Launch("norm", 32.0, 8.0), Launch("gemm", 60.0, 40.0)]


def test_kernels_are_averaged_over_steps_and_sorted() -> None:
    assert rows_of(LAUNCHES, 2) == [("gemm", 1.0, 35.0), ("norm", 0.5, 4.0)]


def test_only_a_category_is_read(tmp_path: Path) -> None:
    events = [{"cat": "kernel", "name": "gemm", "ts": 1, "dur": 2}, {"cat": "cpu_op"}, {}]
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"traceEvents": events}))
    assert launches_of(trace, "kernel") == [Launch("gemm", 1.0, 2.0)]


def test_the_table_says_where_time_goes_and_how_long_nothing_ran() -> None:
    first, _, gemm, norm = report(LAUNCHES, 2).splitlines()
    assert first.split() == (
        [
            "50.0",
            "us",
            "a",
            "step,",
            "2",
            "kernels",
            "of",
            "39.0",
            "us;",
            "idle",
            "22.0%,",
            "of",
            "that",
            "in",
            "long",
            "gaps",
            "20.0%",
        ]
    )
    assert gemm.split() == ["35.0", "89.7%", "1.0", "gemm"]
    assert norm.split() == ["4.0", "10.3%", "0.5", "norm"]


@pytest.mark.parametrize("steps", [["--batch", "2", "--context", "8"], ["--prompt", "40"]])
def test_a_try_on_the_cpu(tmp_path: Path, steps: list[str]) -> None:
    command = [sys.executable, "tests/gpu/profile_steps.py", "--device", "cpu"]
    done = subprocess.run(
        [*command, *steps, "--out", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^ +[\d.]+ us a step, \d+ kernels", done.stdout)
    assert "aten::embedding" in done.stdout
    (trace,) = tmp_path.glob("*.json")
    assert f"trace: {trace}" in done.stdout
