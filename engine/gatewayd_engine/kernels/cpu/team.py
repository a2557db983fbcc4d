"""A team of threads that run compiled jobs together, from the thread that calls them.

The threads stay in machine code and never take the interpreter lock. A job ends when its caller
joins it.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.kernels.cpu.team_layout import MOST_ARGUMENTS, RING, Team, slot_size, team_size
from gatewayd_engine.kernels.llvm.library import Library, load_or_compile
from gatewayd_engine.kernels.llvm.processor import Processor

MOST_PHASES = 1 << 13
"""Of a job: enough for 900 layers in one."""


def sums_size(processor: Processor) -> int:
    """Return the numbers of scratch that a thread needs for the sums of a tile."""
    return processor.row_tile * 8 * processor.lanes


class ThreadTeam:
    """Threads for jobs; the caller's is the first of them.

    A team runs one job at a time, on as many threads as ``use`` says.

    Args:
        processor: of this machine.
        size: number of threads, the caller's included.

    Attributes:
        processor: as given.
        size: as given.
        threads: threads that take part in jobs; all at first.
        lock: held while a job is started or joined.
    """

    def __init__(self, processor: Processor, size: int) -> None:
        code = _team_code(processor)
        self.processor, self.size, self.threads = processor, size, size
        self._memory: NDArray[np.int64] = np.zeros(team_size(MOST_PHASES), np.int64)
        self._address: int = self._memory.ctypes.data
        self._slot = slot_size(MOST_PHASES)
        self._start = code.function("start_job", 8)
        self._join = code.function("join_job", 2)
        self.lock = threading.RLock()
        self._process = os.getpid()
        self._live: object = None
        self._opener = 0
        # Members may be as many jobs behind as the ring has slots, and still read what these own.
        self._owners: deque[object] = deque(maxlen=RING)
        member = code.function("member", 3)
        for index in range(1, size):
            # Daemons: a process that ends does not wait for them.
            threading.Thread(
                target=member,
                args=(self._address, index, self._slot),
                name=f"kernels-{index}",
                daemon=True,
            ).start()
        weakref.finalize(self, _stop, code.function("stop_team", 1), self._memory)

    def run(self, function: int, arguments: NDArray[np.int64], phases: int) -> None:
        """Run a job, and wait for its end; see ``start``."""
        with self.lock:
            self.start(function, arguments, phases)
            self.join()

    def start(
        self,
        function: int,
        arguments: NDArray[np.int64],
        phases: int,
        live: object = (),
        owners: object = (),
    ) -> None:
        """Let the other threads begin a job, after the end of the one before.

        Args:
            function: address of a function of the arguments, a thread's index and their number.
            arguments: of the job, at most ``MOST_ARGUMENTS``.
            phases: phases of the job, at most ``MOST_PHASES``.
            live: owns what the job's parts read and write; referenced until the job has ended.
            owners: own what the job reads outside of its parts, to learn how many these are;
                referenced until the last thread has left the job, which may be some jobs later.

        Raises:
            ValueError: there are more of either.
        """
        count = len(arguments)
        if count > MOST_ARGUMENTS or phases > MOST_PHASES:
            raise ValueError(f"a job of {count} arguments and {phases} phases is too large")
        with self.lock:
            self.join()
            # A forked process, and one that ends, has no other threads.
            is_alone = os.getpid() != self._process or self._memory[Team.GENERATION] < 0
            threads = 1 if is_alone else self.threads
            self._start(
                *(self._address, self.size - 1, self._slot, function),
                *(arguments.ctypes.data, count, phases, threads),
            )
            if threads > 1:  # other jobs take no slot of the ring
                self._owners.append(owners)
            self._live, self._opener = live, os.getpid()

    def join(self) -> None:
        """Take part in the job that was started last, until it ends; do nothing if it has."""
        with self.lock:
            # A forked process does not end its parent's job: the other threads are not there.
            if self._live is not None and os.getpid() == self._opener:
                self._join(self._address, self._slot)
            self._live = None

    @cached_property
    def sums(self) -> NDArray[np.float32]:
        """Return scratch of ``sums_size`` numbers for each thread, for the products of a job."""
        return np.empty((self.size, sums_size(self.processor)), np.float32)

    def use(self, threads: int) -> None:
        """Set the number of threads of the next jobs."""
        self.threads = min(self.size, threads)


def _stop(stop: Callable[..., None], memory: NDArray[np.int64]) -> None:
    # The threads may read the memory for a moment longer: it is never released.
    _stopped.append(memory)
    stop(memory.ctypes.data)


_stopped: list[NDArray[np.int64]] = []


@cache
def _team_code(processor: Processor) -> Library:
    def compile_code() -> bytes:
        from gatewayd_engine.kernels.cpu.team_code import add_team
        from gatewayd_engine.kernels.llvm.builder import new_module
        from gatewayd_engine.kernels.llvm.compiler import to_object

        module = new_module("team")
        add_team(module, processor)
        return to_object(module, processor)

    return load_or_compile(processor, ("team",), compile_code)
