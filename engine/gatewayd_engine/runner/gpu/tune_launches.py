"""Chooses how a step's kernels are launched, by timing decode steps each way."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from gatewayd_engine.kernels.base import Kernels
from gatewayd_engine.model.linears.norm_gate_fusion import MOST_LINES, Fusion
from gatewayd_engine.runner.gpu.runner import DeviceRunner
from gatewayd_engine.tuning.clock import LaunchClock, surviving
from gatewayd_engine.tuning.table import DeviceLost, NoMemory, TuningTable, case

_LINES = 8
"""Of the step for which early launches are timed. They count most where a step is short, and are
the same kernels with more lines."""
_MOST_ERROR = 5e-2
"""Of a line of logits, relative to its length: products round otherwise in each layer."""
_log = logging.getLogger(__name__)
T = TypeVar("T")


class Differs(Exception):
    """The same step computes something else."""


def choose_launches(
    runner: DeviceRunner, kernels: Kernels, table: TuningTable, clock: LaunchClock
) -> None:
    """Set ``launches_early``.

    Args:
        runner: of an engine that has no sequence yet.
        kernels: of its device.
        table: what is known, and kept.
        clock: measures.

    Raises:
        DeviceLost: nothing can be computed any more.
    """

    def use(name: str) -> None:
        kernels.launches_early = name == "early"

    if kernels.can_launch_early:
        lines = min(_LINES, runner.max_lines)
        try:
            # The same kernels make the same numbers.
            _choose("launches", lines, ("in turn", "early"), use, runner, table, clock, 0.0)
        except NoMemory as error:
            _warn("how kernels are launched", str(error))


def choose_fusion(
    runner: DeviceRunner,
    fusion: Fusion,
    sizes: Sequence[int],
    table: TuningTable,
    clock: LaunchClock,
) -> None:
    """Set the numbers of lines for which norms and gates are fused.

    Args:
        runner: of an engine that has no sequence yet.
        fusion: of its decoder.
        sizes: numbers of lines that will be captured.
        table: what is known, and kept.
        clock: measures.

    Raises:
        DeviceLost: nothing can be computed any more.
    """
    if not fusion.is_possible:
        return
    lacked = ""
    # The largest first: attention is chosen as a step is made, for all sizes up to a power of two
    # at the first of them. With drafts, sizes are captured that lie between such powers.
    for lines in sorted(sizes, reverse=True):
        if lines > min(MOST_LINES, runner.max_lines):
            continue

        def use(name: str, lines: int = lines) -> None:
            (fusion.lines.add if name == "fused" else fusion.lines.discard)(lines)

        try:
            names = ("apart", "fused")
            _choose("norms and gates", lines, names, use, runner, table, clock, _MOST_ERROR)
        except NoMemory as error:
            lacked = str(error)  # alone: the exception holds tensors
    if lacked:
        _warn("whether norms and gates are fused", lacked)


def _warn(what: str, why: str) -> None:
    _log.warning("too little memory to choose %s, until the next start: %s", what, why)


@torch.inference_mode()
def _choose(
    op: str,
    lines: int,
    names: tuple[str, str],
    use: Callable[[str], None],
    runner: DeviceRunner,
    table: TuningTable,
    clock: LaunchClock,
    most_error: float,
) -> None:
    """Leave the faster way in use, of those that compute the same.

    Args:
        op: what is decided.
        lines: of the decode step that is timed.
        names: of both ways; the first is the default.
        use: takes a way into use.
        runner: of an engine that has no sequence yet.
        table: what is known, and kept.
        clock: measures.
        most_error: of a line of logits, relative to its length.

    Raises:
        DeviceLost: nothing can be computed any more.
        NoMemory: the device has too little at the moment; the default is in use.
    """
    # Attention is chosen as the step is made, for kernels that are launched the usual way, and both
    # ways are timed and compared over this one step. In a step of its own each way might have
    # another attention kernel, whose answer differs in its last bits. Nor would that change much:
    # attention is chosen anew for the way that wins, the kernel it won with among the candidates.
    # So no choice depends on one that is made after it, and no start revises another's.
    use(names[0])
    try:
        with surviving(runner.logits.device, op):
            step = runner.uncaptured(lines)
    except (DeviceLost, NoMemory):
        raise
    except Exception as error:  # noqa: BLE001 - of any library; what cannot be captured is told then
        _log.warning("%s of %d lines cannot be measured", op, lines, exc_info=error)
        return
    if step is None:
        return
    logits = runner.logits[:lines]
    timed: list[torch.Tensor] = []

    def answer(name: str, run: Callable[[], T]) -> tuple[torch.Tensor, T]:
        use(name)
        # What is not written shows.
        logits.fill_(torch.nan)
        returned = run()
        return logits.to(torch.float32, copy=True), returned

    def check(name: str) -> None:
        # Comparing waits for the device, so a fault shows there at the latest.
        with surviving(logits.device, f"{op}, {name}"):
            expected, _ = answer(names[0], step)
            _compare(answer(name, step)[0], expected, most_error)

    def microseconds(name: str) -> float:
        with surviving(logits.device, f"{op}, {name}"):
            made, time = answer(name, lambda: clock([step]))
            # In a graph more overlaps than when the host launches one kernel after the other.
            timed.append(made)
            _compare(made, timed[0], most_error)
        return time

    which = case(
        op,
        str(logits.dtype).removeprefix("torch."),
        m=lines,
        **runner.step_sizes,
    )
    choice = names[0]
    try:
        choice = table.chosen(which, names, microseconds, check)
    finally:
        use(choice)


def _compare(logits: torch.Tensor, expected: torch.Tensor, most_error: float) -> None:
    """Compare two answers to one question.

    Raises:
        Differs: they are not the same but for rounding.
    """
    error = ((logits - expected).norm(dim=1) / expected.norm(dim=1).clamp_min(1e-30)).max().item()
    if not error <= most_error:
        raise Differs(f"logits are {error:.1e} away from those of the usual way")
