"""Machine code of the thread team: the loop of its members, a job's start and end, barriers.

Threads wait by spinning for some microseconds, then by the operating system, so that an idle team
takes no processor from the gateway. A barrier yields its processor now and then: the thread that
it waits for may need it.
"""

from __future__ import annotations

from llvmlite import ir

from gatewayd_engine.kernels.cpu.team_layout import Field
from gatewayd_engine.kernels.llvm.builder import I32, I64, Function, Pointer, Value
from gatewayd_engine.kernels.llvm.processor import Processor

MEMBERS = 1 << 8
"""A generation is a count of jobs times this, plus the number of threads of the job. So a thread
that takes no part learns it from one number, and never reads a job that may be overwritten."""
_IDLE_SPINS = 1 << 11
"""Pauses until an idle thread sleeps: some 30 to 60 microseconds, as long as waking takes."""
_BARRIER_SPINS = 1 << 12
"""Pauses at a barrier until the processor is yielded."""
_NAP = 100
"""Microseconds that an idle thread sleeps at a time where there are no futexes."""
_FUTEX = {"x86_64": 202, "aarch64": 98}
_WAIT, _WAKE = 128, 129  # private to the process


class _TypedPointer(ir.PointerType):  # type: ignore[misc]  # llvmlite has no types
    """A pointer that knows its function's type, which llvmlite's calls ask for."""

    def __init__(self, pointee: ir.FunctionType) -> None:
        super().__init__()
        self.pointee = pointee

    def __str__(self) -> str:
        return "ptr"


def call_address(f: Function, address: Value, *values: Value | Pointer) -> None:
    """Call a function by its address; all functions called so return nothing."""
    kind = ir.FunctionType(ir.VoidType(), [value.ir.type for value in values])
    target = f.ir.inttoptr(address.ir, _TypedPointer(kind))
    f.ir.call(target, [value.ir for value in values])


def load(f: Function, cell: Pointer) -> Value:
    """Load a number that other threads write."""
    return Value(f, f.ir.load_atomic(cell.ir, "acquire", 8, typ=I64))


def exchange(f: Function, cell: Pointer, value: Value) -> None:
    """Store a number that other threads read."""
    f.ir.atomic_rmw("xchg", cell.ir, value.ir, "seq_cst")


def add(f: Function, cell: Pointer, value: int) -> Value:
    """Add to a number that other threads change, too; returns its former value."""
    return Value(f, f.ir.atomic_rmw("add", cell.ir, I64(value), "seq_cst"))


def pause(f: Function, processor: Processor) -> None:
    """Tell the processor that this thread waits for another one."""
    if processor.triple.startswith("x86"):
        f.intrinsic("llvm.x86.sse2.pause", ir.VoidType())
    else:
        f.intrinsic("llvm.aarch64.hint", ir.VoidType(), f.constant(I32, 1))  # yield


def spin_until(f: Function, processor: Processor, cell: Pointer, least: Value) -> None:
    """Wait until a number has reached ``least``, yielding the processor now and then."""
    spins = f.variable(0)
    with f.repeat_while() as loop:
        loop.stop_unless(load(f, cell) < least)
        pause(f, processor)
        spins.set(spins.get() + 1)
        with f.when((spins.get() % _BARRIER_SPINS).equals(0)):
            f.external("sched_yield", I32)


def barrier(f: Function, processor: Processor, team: Pointer, phase: Value, threads: Value) -> None:
    """Wait until all threads have reached the barrier number ``phase``, counted from 1."""
    with f.when(threads > 1):
        add(f, team + Field.ARRIVED, 1)
        spin_until(f, processor, team + Field.ARRIVED, phase * threads)


def add_team(module: ir.Module, processor: Processor) -> None:
    """Add ``member``, which each thread calls once, ``run_job``, and ``stop_team``."""
    _add_member(module, processor)
    _add_run(module, processor)
    stop = Function(module, "stop_team", [[I64]], is_exported=True)
    (team,) = stop.arguments
    exchange(stop, team + Field.GENERATION, stop.index(-1))
    _wake(stop, processor, team)
    stop.finish()


def _add_member(module: ir.Module, processor: Processor) -> None:
    f = Function(module, "member", [[I64], I64], is_exported=True)
    team, index = f.arguments
    seen = f.variable(0)
    with f.repeat_while() as loop:
        now = _next_generation(f, processor, team, seen.get())
        seen.set(now)
        loop.stop_unless(now > 0)
        threads = now % MEMBERS
        with f.when(index < threads):
            arguments = team.pointer(Field.ARGUMENTS, I64)
            call_address(f, team[Field.FUNCTION], arguments, index, threads)
            add(f, team + Field.DONE, 1)
    f.finish()


def _next_generation(f: Function, processor: Processor, team: Pointer, seen: Value) -> Value:
    """Wait until the team's generation differs from the one seen last, and return it."""
    spins = f.variable(0)
    with f.repeat_while() as loop:
        loop.stop_unless(load(f, team + Field.GENERATION).equals(seen))
        pause(f, processor)
        spins.set(spins.get() + 1)
        with f.when(spins.get() > _IDLE_SPINS):
            spins.set(f.index(0))
            _sleep(f, processor, team, seen)
    return load(f, team + Field.GENERATION)


def _sleep(f: Function, processor: Processor, team: Pointer, seen: Value) -> None:
    number = _futex_number(processor)
    if number is None:
        f.external("usleep", I32, f.constant(I32, _NAP))
        return
    # Counted before the kernel compares the generation, so that a job that starts now wakes it.
    add(f, team + Field.SLEEPING, 1)
    _futex(f, number, team, _WAIT, f.convert(seen, "trunc", I32))
    add(f, team + Field.SLEEPING, -1)


def _wake(f: Function, processor: Processor, team: Pointer) -> None:
    number = _futex_number(processor)
    if number is not None:
        with f.when(load(f, team + Field.SLEEPING) > 0):
            _futex(f, number, team, _WAKE, f.constant(I32, MEMBERS))


def _futex_number(processor: Processor) -> int | None:
    """Return the number of Linux's system call; None on other systems, where threads nap."""
    return _FUTEX.get(processor.triple.split("-")[0]) if "linux" in processor.triple else None


def _futex(f: Function, number: int, team: Pointer, what: int, value: Value) -> None:
    word = Value(f, (team + Field.GENERATION).ir)
    none = f.index(0)
    f.external(
        "syscall", I64, f.index(number), word, f.constant(I32, what), value, none, none, none
    )


def _add_run(module: ir.Module, processor: Processor) -> None:
    f = Function(module, "run_job", [[I64], I64, [I64], I64], is_exported=True)
    team, function, arguments, threads = f.arguments
    with f.when(threads > 1):
        exchange(f, team + Field.ARRIVED, f.index(0))
        exchange(f, team + Field.DONE, f.index(0))
        team[Field.FUNCTION] = function
        team[Field.ARGUMENTS] = Value(f, f.ir.ptrtoint(arguments.ir, I64))
        count = (load(f, team + Field.GENERATION) // MEMBERS + 1) % (1 << 22)
        # Never zero, the first one, and below 2^31, as the kernel compares 32 bits.
        count = f.most(count, 1)
        exchange(f, team + Field.GENERATION, count * MEMBERS + threads)
        _wake(f, processor, team)
    call_address(f, function, arguments, f.index(0), threads)
    with f.when(threads > 1):
        spin_until(f, processor, team + Field.DONE, threads - 1)
    f.finish()
