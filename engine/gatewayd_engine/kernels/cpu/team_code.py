"""Machine code of a thread team: its threads' loop, the running of a job, phases of shared work.

Threads draw the parts of a phase from a counter, and a phase is over when all its parts are done.
So a thread that lost its processor holds up the others only if it had drawn a part. Threads wait by
spinning for some microseconds, then in the kernel: an idle team takes no processor from anyone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite import ir

from gatewayd_engine.kernels.cpu.team_layout import HEADER, RING, Slot, Team
from gatewayd_engine.kernels.llvm.builder import I32, I64, KernelFunction, Pointer, Value
from gatewayd_engine.kernels.llvm.processor import Processor

_IDLE_SPINS = 1 << 11
"""Pauses until an idle thread sleeps: some 30 to 60 microseconds, as long as waking takes."""
_SPINS = 1 << 10
"""Pauses until a thread that waits for another yields its processor."""
_MOST_GENERATION = 1 << 30
"""The kernel compares 32 bits of the generation."""
_NAP = 100
"""Microseconds that an idle thread sleeps at a time where there are no futexes."""
_FUTEX = {"x86_64": 202, "aarch64": 98}
"""Numbers of Linux's system call."""
_WAIT, _WAKE = 128, 129  # private to the process
_ALL = 1 << 10


class _TypedPointer(ir.PointerType):  # type: ignore[misc]  # llvmlite has no types
    """A pointer that knows its function's type, which llvmlite's calls ask for."""

    def __init__(self, pointee: ir.FunctionType) -> None:
        super().__init__()
        self.pointee = pointee

    def __str__(self) -> str:
        return "ptr"


def call_address(f: KernelFunction, address: Value, *values: Value | Pointer) -> None:
    """Call a function by its address; all functions called so return nothing."""
    kind = ir.FunctionType(ir.VoidType(), [value.ir.type for value in values])
    target = f.ir.inttoptr(address.ir, _TypedPointer(kind))
    f.ir.call(target, [value.ir for value in values])


class Phases:
    """Phases of a job: work that threads share in parts.

    Args:
        f: the job's function.
        processor: that it is compiled for.
        arguments: of the job.
    """

    def __init__(self, f: KernelFunction, processor: Processor, arguments: Pointer) -> None:
        self._f, self._processor = f, processor
        self._counters = arguments + (Slot.PHASES - Slot.ARGUMENTS)
        self._phase = f.variable(0)

    @contextmanager
    def parts(self, count: Value, size: Value | int) -> Iterator[tuple[Value, Value]]:
        """Emit a phase over ``count`` items, in parts of at most ``size``; then all are done.

        Yields:
            The first item of a part and the one behind its last.
        """
        f = self._f
        size = f.index(size)
        drawn = self._counters + self._phase.get() * 2
        done = drawn + 1
        with f.repeat_while() as loop:
            first = _add(f, drawn, 1) * size
            loop.stop_unless(first < count)
            yield first, f.least(first + size, count)
            _add(f, done, 1)
        _spin_until(f, self._processor, done, (count + (size - 1)) // size)
        self._phase.set(self._phase.get() + 1)


def add_team(module: ir.Module, processor: Processor) -> None:
    """Add ``member``, which each thread calls once, ``start_job``, ``join_job``, ``stop_team``."""
    _add_member(module, processor)
    _add_start(module, processor)
    _add_join(module)
    stop = KernelFunction(module, "stop_team", [[I64]], is_exported=True)
    (team,) = stop.arguments
    _exchange(stop, team + Team.GENERATION, stop.index(-1))
    _wake(stop, processor, team)
    stop.finish()


def _add_member(module: ir.Module, processor: Processor) -> None:
    """Add ``member(team, index, slot_size)``: it takes part in all jobs, one after another."""
    f = KernelFunction(module, "member", [[I64], I64, I64], is_exported=True)
    team, index, size = f.arguments
    job = f.variable(0)
    with f.repeat_while() as loop:
        now = _await_change(f, processor, team, job.get())
        loop.stop_unless(now > 0)
        job.set(_next(f, job.get()))
        slot = _slot(team, job.get() % RING, size)
        threads = slot[Slot.THREADS]
        with f.when(index < threads):
            arguments = slot + Slot.ARGUMENTS
            call_address(f, slot[Slot.FUNCTION], arguments, index, threads)
        _add(f, slot + Slot.LEFT, -1)
    f.finish()


def _add_start(module: ir.Module, processor: Processor) -> None:
    """Add ``start_job(team, members, slot_size, function, arguments, count, phases, threads)``.

    It copies ``count`` arguments, clears the counters of ``phases``, and lets the members begin.
    """
    kinds = [[I64], I64, I64, I64, [I64], I64, I64, I64]
    f = KernelFunction(module, "start_job", kinds, is_exported=True)
    team, members, size, function, arguments, count, phases, threads = f.arguments
    job = f.variable(f.index(0))
    place = f.variable(f.index(RING))
    with f.when(threads > 1):
        job.set(_next(f, _load(f, team + Team.GENERATION)))
        place.set(job.get() % RING)
    team[Team.OPEN] = place.get()
    slot = _slot(team, place.get(), size)
    # Threads of the last job in this slot have to leave it first.
    _spin_until(f, processor, slot + Slot.LEFT, f.index(0), is_at_most=True)
    with f.loop(0, count) as i:
        (slot + Slot.ARGUMENTS)[i] = arguments[i]
    with f.loop(0, phases * 2) as i:
        (slot + Slot.PHASES)[i] = f.index(0)
    slot[Slot.FUNCTION] = function
    slot[Slot.THREADS] = threads
    with f.when(threads > 1):
        _exchange(f, slot + Slot.LEFT, members)
        _exchange(f, team + Team.GENERATION, job.get())
        _wake(f, processor, team)
    f.finish()


def _add_join(module: ir.Module) -> None:
    """Add ``join_job(team, slot_size)``: the caller takes part in the job that was started last."""
    f = KernelFunction(module, "join_job", [[I64], I64], is_exported=True)
    team, size = f.arguments
    slot = _slot(team, team[Team.OPEN], size)
    arguments, threads = slot + Slot.ARGUMENTS, slot[Slot.THREADS]
    call_address(f, slot[Slot.FUNCTION], arguments, f.index(0), threads)
    f.finish()


def _next(f: KernelFunction, job: Value) -> Value:
    """Return the number after a job's: positive, and in the ring's order when it starts again."""
    return f.choose(job < _MOST_GENERATION, job + 1, f.index(_MOST_GENERATION % RING + 1))


def _slot(team: Pointer, place: Value, size: Value) -> Pointer:
    return team + (place * size + HEADER)


def _load(f: KernelFunction, cell: Pointer) -> Value:
    """Load a number that other threads write."""
    return Value(f, f.ir.load_atomic(cell.ir, "acquire", 8, typ=I64))


def _exchange(f: KernelFunction, cell: Pointer, value: Value) -> None:
    """Store a number that other threads read."""
    f.ir.atomic_rmw("xchg", cell.ir, value.ir, "seq_cst")


def _add(f: KernelFunction, cell: Pointer, value: int) -> Value:
    """Add to a number that other threads change, too; returns its former value."""
    return Value(f, f.ir.atomic_rmw("add", cell.ir, I64(value), "seq_cst"))


def _pause(f: KernelFunction, processor: Processor) -> None:
    """Tell the processor that this thread waits for another one."""
    if processor.triple.startswith("x86"):
        f.intrinsic("llvm.x86.sse2.pause", ir.VoidType())
    else:
        f.intrinsic("llvm.aarch64.hint", ir.VoidType(), f.constant(I32, 1))  # yield


def _spin_until(
    f: KernelFunction,
    processor: Processor,
    cell: Pointer,
    bound: Value,
    *,
    is_at_most: bool = False,
) -> None:
    """Wait until a number is at least ``bound``, or at most, and yield the processor meanwhile."""
    spins = f.variable(0)
    with f.repeat_while() as loop:
        now = _load(f, cell)
        loop.stop_unless(now > bound if is_at_most else now < bound)
        _pause(f, processor)
        spins.set(spins.get() + 1)
        with f.when((spins.get() % _SPINS).equals(0)):
            f.external("sched_yield", I32)


def _await_change(f: KernelFunction, processor: Processor, team: Pointer, seen: Value) -> Value:
    """Wait until the team's generation differs from the one seen last, and return it."""
    spins = f.variable(0)
    with f.repeat_while() as loop:
        loop.stop_unless(_load(f, team + Team.GENERATION).equals(seen))
        _pause(f, processor)
        spins.set(spins.get() + 1)
        with f.when(spins.get() > _IDLE_SPINS):
            spins.set(f.index(0))
            _sleep(f, processor, team, seen)
    return _load(f, team + Team.GENERATION)


def _sleep(f: KernelFunction, processor: Processor, team: Pointer, seen: Value) -> None:
    number = _futex_number(processor)
    if number is None:
        f.external("usleep", I32, f.constant(I32, _NAP))
        return
    # Counted before the kernel compares the generation, so that a job that starts now wakes it.
    _add(f, team + Team.SLEEPING, 1)
    _futex(f, number, team, _WAIT, f.convert(seen, "trunc", I32))
    _add(f, team + Team.SLEEPING, -1)


def _wake(f: KernelFunction, processor: Processor, team: Pointer) -> None:
    number = _futex_number(processor)
    if number is not None:
        with f.when(_load(f, team + Team.SLEEPING) > 0):
            _futex(f, number, team, _WAKE, f.constant(I32, _ALL))


def _futex_number(processor: Processor) -> int | None:
    """Return the number of Linux's system call; None on other systems, where threads nap."""
    return _FUTEX.get(processor.triple.split("-")[0]) if "linux" in processor.triple else None


def _futex(f: KernelFunction, number: int, team: Pointer, what: int, value: Value) -> None:
    word = Value(f, (team + Team.GENERATION).ir)
    none = f.index(0)
    f.external(
        "syscall", I64, f.index(number), word, f.constant(I32, what), value, none, none, none
    )
