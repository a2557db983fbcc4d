"""Crash guard: what ended two processes in a row is not tried again; stopped runs are."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from signal import SIGKILL, SIGTERM

import msgspec
import pytest

from gatewayd_engine.tuning.crash_guard import Attempt, Attempts
from gatewayd_engine.tuning.table import TuningTable, load
from tests.engine.tuning.test_table import CASE, H200, Stopwatch, agrees, never

NAMES = ["torch", "good", "bad 1", "bad 2"]
_TRIES = """
import json, sys, time
from pathlib import Path
from gatewayd_engine.tuning.crash_guard import Attempt, Attempts
from gatewayd_engine.tuning.table import TunedMachine, TuningTable, case
folder, last, at, how, names, machine, sizes = sys.argv[1:]
CASE = case("matmul", "bfloat16", **json.loads(sizes))
def reach(where, name):
    if (where, name) == (at, last):
        print("trying", flush=True)
        if how == "wait":
            time.sleep(60)
        else:
            sum(range(10**11))  # Python sees no signal in it, as in a kernel that hangs
    return 1.0
table = TuningTable(TunedMachine(**json.loads(machine)), Path(folder))
if at == "sizes":
    table.passing(CASE, [1, 2], lambda size: reach(at, last))
else:
    calls = [lambda name, at=at: reach(at, name) for at in ("measure", "check")]
    table.chosen(CASE, json.loads(names), *calls)
"""


def start(
    folder: Path, last: str = "bad 2", at: str = "check", how: str = "wait"
) -> subprocess.Popen[str]:
    """A process that is trying a candidate when this returns."""
    # As JSON, because tests take long to import.
    parts = (NAMES, H200, dict(CASE.sizes))
    written = [msgspec.json.encode(part).decode() for part in parts]
    given = [str(folder), last, at, how, *written]
    command = [sys.executable, "-c", _TRIES, *given]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "trying\n"
    process.stdout.close()
    return process


def processor_seconds(pid: int) -> float:
    """Of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def end(process: subprocess.Popen[str], number: int) -> None:
    process.send_signal(number)
    assert process.wait(30) == -number


def tried(folder: Path) -> list[str]:
    """What a start measures where nothing is known, or another set of candidates."""
    measure = Stopwatch(torch=10.0, good=9.0, bad_1=10.0, bad_2=8.0)
    TuningTable(H200, folder).chosen(CASE, NAMES, measure, agrees)
    return measure.asked


def kept(folder: Path) -> tuple[Sequence[str], Sequence[str]]:
    """Families that are excluded, and attempts that are suspected."""
    path = TuningTable(H200, folder).path
    contents = None if path is None else load(path)
    return ([], []) if contents is None else (contents.excluded, contents.suspected)


def test_a_start_that_is_stopped_accuses_no_candidate(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        end(start(tmp_path), SIGTERM)
        assert kept(tmp_path) == ([], [])
    assert caplog.text == ""
    assert tried(tmp_path) == NAMES


@pytest.mark.parametrize("at", ["check", "measure"])
def test_what_ended_two_processes_in_a_row_is_not_tried_by_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, at: str
) -> None:
    end(start(tmp_path, at=at), SIGKILL)
    assert kept(tmp_path) == ([], [f"bad 2, {CASE}"])
    end(start(tmp_path, at=at), SIGKILL)
    assert kept(tmp_path)[0] == ["matmul bad"]
    assert tried(tmp_path) == ["torch", "good"]
    assert TuningTable(H200, tmp_path).chosen(CASE, NAMES, never, agrees) == "good"
    assert caplog.text.count("a process crashed while it tried bad 2") == 1
    assert caplog.text.count("two processes crashed while they tried bad 2") == 1


def test_what_a_start_survives_is_suspected_no_longer(tmp_path: Path) -> None:
    for _ in range(2):
        end(start(tmp_path), SIGKILL)
        assert tried(tmp_path) == NAMES
        assert kept(tmp_path) == ([], [])
        Path(str(TuningTable(H200, tmp_path).path)).unlink()


def test_a_start_that_dies_before_it_gets_there_changes_nothing(tmp_path: Path) -> None:
    end(start(tmp_path), SIGKILL)
    end(start(tmp_path, "good"), SIGTERM)
    end(start(tmp_path), SIGKILL)
    assert kept(tmp_path)[0] == ["matmul bad"]


def test_replicas_that_are_killed_together_are_one_death(tmp_path: Path) -> None:
    replicas = [start(tmp_path) for _ in range(2)]
    for process in replicas:
        end(process, SIGKILL)
    assert kept(tmp_path) == ([], [f"bad 2, {CASE}"])


def test_a_hang_is_a_death_though_it_is_ended_by_a_stop(tmp_path: Path) -> None:
    for _ in range(2):
        process = start(tmp_path, how="hang")
        computed = processor_seconds(process.pid)
        while processor_seconds(process.pid) < computed + 0.1:  # in what it hangs in
            time.sleep(0.01)
        process.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        end(process, SIGKILL)
    assert kept(tmp_path)[0] == ["matmul bad"]


def test_a_known_choice_that_ended_two_processes_is_left_out(tmp_path: Path) -> None:
    assert tried(tmp_path) == NAMES
    for _ in range(2):
        end(start(tmp_path), SIGKILL)
    assert tried(tmp_path) == ["torch", "good"]


def test_deaths_at_other_sizes_are_not_forgotten_by_a_check_that_passes(tmp_path: Path) -> None:
    assert tried(tmp_path) == NAMES
    for _ in range(2):
        assert TuningTable(H200, tmp_path).chosen(CASE, NAMES, never, agrees) == "bad 2"
        end(start(tmp_path, at="sizes"), SIGKILL)
    assert tried(tmp_path) == ["torch", "good"]


def test_an_attempt_is_found_though_another_start_collected_its_empty_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard, lock = Attempts(tmp_path, "case"), fcntl.flock
    collected: list[set[Attempt]] = []

    def late(file: int, how: int) -> None:
        # The first lock is that of the process that has created the file.
        if not collected:
            collected.append(set())
            collected[0] |= Attempts(tmp_path, "case").collect_fatal()
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    attempt = Attempt("matmul", "bad")
    with guard.trying(attempt):
        assert collected == [set()]
        (path,) = tmp_path.iterdir()
        assert path.read_text().strip() == "\n".join(attempt)
