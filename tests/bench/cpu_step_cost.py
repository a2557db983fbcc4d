"""Benchmark: CPU time of a decode step on a CPU that is not compiled code, by sequences.

One thread computes, and its time in jobs of the thread team is subtracted: what is left is Python
and small operations of numpy, to plan, prepare and complete a step and to send its results.

    python tests/bench/cpu_step_cost.py [--sequences 1 8 32 64] [--json]
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[2]))

from gatewayd_engine.process.frames import EngineSocket
from tests.bench.in_process_engine import Drive, Job, make_core

# Needs the settings of threads that the import above makes.
from gatewayd_engine.kernels.cpu.team import ThreadTeam  # isort: skip

_PROMPT, _WARM, _ROUNDS, _STEPS = 16, 20, 20, 16


class _Stopwatch:
    """Adds up the CPU time of the calling thread within a function."""

    def __init__(self) -> None:
        self.nanoseconds = 0

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function."""

        def wrapper(*arguments: Any) -> Any:
            began = time.thread_time_ns()
            try:
                return call(*arguments)
            finally:
                self.nanoseconds += time.thread_time_ns() - began

        return wrapper


def microseconds_per_step(sequences: int) -> tuple[float, float]:
    """Of the engine's thread without compiled code: the least of some rounds, and their median."""
    core = make_core(max_running=sequences, threads=1)
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    stream, drive, draw = EngineSocket(ours), Drive(core), random.Random(0)
    for _ in range(sequences):
        prompt = [draw.randrange(5, 4000) for _ in range(_PROMPT)]
        drive.submit(Job(prompt, _WARM + _ROUNDS * _STEPS + 64))
    while core.stats.num_waiting or core.stats.num_running < sequences:
        drive.step()
    for _ in range(_WARM):
        core.step()
    watch, rounds = _Stopwatch(), []
    with patch.object(ThreadTeam, "join", watch.timed(ThreadTeam.join)):
        for _ in range(_ROUNDS):
            watch.nanoseconds, began = 0, time.thread_time_ns()
            for _ in range(_STEPS):
                stream.read_available()
                stream.send(core.step())
            spent = time.thread_time_ns() - began - watch.nanoseconds
            rounds.append(spent / 1e3 / _STEPS)
            _drain(theirs)
    core.strategies.close()
    return min(rounds), statistics.median(rounds)


def _drain(stream: socket.socket) -> None:
    try:
        while stream.recv(1 << 20):
            pass
    except BlockingIOError:
        return


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = {n: microseconds_per_step(n) for n in options.sequences}
    if options.json:
        print(json.dumps(found))
        return
    for n, (least, median) in found.items():
        print(f"{n:5d} sequences: {least:.0f} us a step, median {median:.0f}")


if __name__ == "__main__":
    main()
