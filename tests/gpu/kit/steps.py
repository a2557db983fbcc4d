"""Runs steps, each within its limit and all within one, and sums up what came of them.

A step that fails or takes too long does not keep the others from running: it is ended with all
processes that it has started. Time is kept for steps of more value behind it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

TOO_LONG = 124
"""The status of a step that was ended, as ``timeout`` has it."""
_LEAST_SECONDS = 12.0
_GRACE_SECONDS = 5.0
_LAST_LINES, _WIDTH = 14, 220
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Step:
    """One program.

    Attributes:
        name: ``group:what``.
        seconds: its limit.
        log: the file that gets its output.
        command: for bash.
        kept: seconds that steps before it must leave.
        if_failed: it is run only if the step of this name was run and failed.
        then: variables for the steps behind it, if it succeeds.
    """

    name: str
    seconds: float
    log: str
    command: str
    kept: float = 0.0
    if_failed: str = ""
    then: Mapping[str, str] = field(default_factory=dict)

    @property
    def group(self) -> str:
        """What the name begins with."""
        return self.name.partition(":")[0]


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a step; ``status`` is None if there was no time for it."""

    step: Step
    status: int | None
    seconds: float
    note: str = ""
    last_lines: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """For the summary: one line, and the end of the output if it failed."""
        if self.status is None:
            return [f"{self.step.name:22} skipped, no time"]
        said = (
            f"{self.step.name:22} rc {self.status:<3} {self.seconds:4.0f} s  {self.note}".rstrip()
        )
        return [said, *(f"    | {line}" for line in self.last_lines)]


class Steps:
    """Runs steps one after the other.

    Args:
        seconds: for all of them.
        out: folder of the logs.
        environment: of the programs, whole.
        note: called after each step; what it says stands beside it.
    """

    def __init__(
        self,
        seconds: float,
        out: Path,
        environment: Mapping[str, str],
        note: Callable[[], str] = lambda: "",
    ) -> None:
        self._began = time.monotonic()
        self._seconds = seconds
        self._out = out
        self._environment = dict(environment)
        self._note = note
        self.results: list[Result] = []

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def run(self, steps: Sequence[Step], groups: Sequence[str] = ()) -> None:
        """Run steps in their order: all, or those of some groups."""
        chosen = [one for one in steps if not groups or one.group in groups or one.name in groups]
        for index, step in enumerate(chosen):
            if step.if_failed and not self._has_failed(step.if_failed):
                continue
            kept = sum(one.kept for one in chosen[index + 1 :] if not one.if_failed)
            result = self._run(step, min(step.seconds, self._seconds - self.elapsed - kept))
            self.results.append(result)
            if result.status == 0:
                self._environment |= step.then

    def _has_failed(self, name: str) -> bool:
        return any(one.step.name == name and one.status not in (0, None) for one in self.results)

    def _run(self, step: Step, limit: float) -> Result:
        if limit < min(_LEAST_SECONDS, step.seconds):
            return Result(step, None, 0.0)
        began, file = time.monotonic(), self._out / step.log
        with file.open("ab") as log:
            head = f"\n##### {step.name} (at {self.elapsed:.0f} s, limit {limit:.0f} s): "
            log.write(f"{head}{step.command}\n".encode())
            log.flush()
            begins = log.tell()
            status = _bash(step.command, limit, self._environment, log.fileno())
        seconds = time.monotonic() - began
        last = _last_lines(file, begins) if status else ()
        return Result(step, status, seconds, self._note(), last)


def _last_lines(file: Path, begins: int) -> tuple[str, ...]:
    with file.open("rb") as log:
        log.seek(begins)
        lines = log.read().decode(errors="replace").splitlines()
    return tuple(line[:_WIDTH] for line in lines if line.strip())[-_LAST_LINES:]


def _bash(command: str, limit: float, environment: Mapping[str, str], output: int) -> int:
    """Run a command for so many seconds at most; nothing that it has started outlives it."""
    adopt_orphans()
    process = subprocess.Popen(
        ["bash", "-c", command],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        # What started others ends them in its own way, if it is quick.
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)
        return TOO_LONG
    finally:
        _kill_all()
        process.wait()


def adopt_orphans() -> None:
    """Become the parent of what a step's processes leave behind, in whichever session it is."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _kill_all() -> None:
    """End all children, theirs too as they become ours."""
    deadline = time.monotonic() + _GRACE_SECONDS
    while (left := _children(os.getpid())) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.01)


def _children(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(stat.parent.name))
    return found
