"""Autotuning of launch mode and kernel fusion, by timing decode steps in each variant."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from gatewayd_engine.kernels.base import Kernels
from gatewayd_engine.model.linears.norm_gate_fusion import MOST_LINES, Fusion
from gatewayd_engine.runner.gpu.runner import DeviceRunner
from gatewayd_engine.tuning.clock import LaunchClock, device_errors
from gatewayd_engine.tuning.table import DeviceLost, NoMemory, TuningTable, case

_LINES = 8
"""Batch size for which programmatic dependent launch is timed. It matters most where a step is
short, and larger batches use the same kernels."""
_MOST_ERROR = 5e-2
"""Most difference of a row of logits, relative to its norm: rounding differs in each layer."""
_log = logging.getLogger(__name__)
T = TypeVar("T")


class LogitsMismatch(Exception):
    """A variant of the step computes different logits."""


def choose_launches(
    runner: DeviceRunner, kernels: Kernels, table: TuningTable, clock: LaunchClock
) -> None:
    """Choose whether kernels use programmatic dependent launch; sets ``launches_early``.

    Args:
        runner: runner of an engine without sequences.
        kernels: kernels of its device.
        table: persistent table of measured choices.
        clock: measures launches.

    Raises:
        DeviceLost: the device cannot be used any more.
    """

    def use(name: str) -> None:
        kernels.launches_early = name == "early"

    if kernels.can_launch_early:
        lines = min(_LINES, runner.max_lines)
        try:
            # The same kernels must give identical results.
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
    """Choose the batch sizes for which norms and gates are fused with matrix products.

    Args:
        runner: runner of an engine without sequences.
        fusion: fusion settings of its decoder.
        sizes: batch sizes that will be captured.
        table: persistent table of measured choices.
        clock: measures launches.

    Raises:
        DeviceLost: the device cannot be used any more.
    """
    if not fusion.is_possible:
        return
    lacked = ""
    # The largest first: attention is autotuned when a step is created, at the first size up to a
    # power of two, for all of these. With drafts, sizes between such powers are captured.
    for lines in sorted(sizes, reverse=True):
        if lines > min(MOST_LINES, runner.max_lines):
            continue

        def use(name: str, lines: int = lines) -> None:
            (fusion.lines.add if name == "fused" else fusion.lines.discard)(lines)

        try:
            names = ("apart", "fused")
            _choose("norms and gates", lines, names, use, runner, table, clock, _MOST_ERROR)
        except NoMemory as error:
            lacked = str(error)  # not the exception, whose traceback references tensors
    if lacked:
        _warn("whether norms and gates are fused", lacked)


def _warn(what: str, why: str) -> None:
    _log.warning("too little memory to autotune %s, until the next start: %s", what, why)


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
    """Activate the faster of two variants, provided that both compute the same.

    Args:
        op: name of the choice.
        lines: batch size of the decode step that is timed.
        names: names of both variants; the first is the default.
        use: activates a variant.
        runner: runner of an engine without sequences.
        table: persistent table of measured choices.
        clock: measures launches.
        most_error: most difference of a row of logits, relative to its norm.

    Raises:
        DeviceLost: the device cannot be used any more.
        NoMemory: the device has too little memory at the moment; the default is active.
    """
    # Attention is chosen when the step is created, for the default variant, and both variants are
    # timed and compared over this one step. With separate steps each variant might have another
    # attention kernel, whose output differs in its last bits. Nor would that change much: attention
    # is chosen again for the variant that wins, with this kernel among the candidates. So no choice
    # depends on a later one, and no start revises another's.
    use(names[0])
    try:
        with device_errors(runner.logits.device, op):
            step = runner.uncaptured(lines)
    except (DeviceLost, NoMemory):
        raise
    except Exception as error:  # noqa: BLE001 - of any library; a failed capture is logged later
        _log.warning("cannot measure %s for %d sequences", op, lines, exc_info=error)
        return
    if step is None:
        return
    logits = runner.logits[:lines]
    timed: list[torch.Tensor] = []

    def answer(name: str, run: Callable[[], T]) -> tuple[torch.Tensor, T]:
        use(name)
        # Makes outputs that are not written visible.
        logits.fill_(torch.nan)
        returned = run()
        return logits.to(torch.float32, copy=True), returned

    def check(name: str) -> None:
        # The comparison synchronises with the device, so faults surface there at the latest.
        with device_errors(logits.device, f"{op}, {name}"):
            expected, _ = answer(names[0], step)
            _compare(answer(name, step)[0], expected, most_error)

    def microseconds(name: str) -> float:
        with device_errors(logits.device, f"{op}, {name}"):
            made, time = answer(name, lambda: clock([step]))
            # More kernels overlap in a graph than in individual launches, so it is checked as well.
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
        # Also after an exception, which may leave any variant active.
        use(choice)


def _compare(logits: torch.Tensor, expected: torch.Tensor, most_error: float) -> None:
    """Compare the logits of two variants.

    Raises:
        LogitsMismatch: they differ by more than rounding.
    """
    error = ((logits - expected).norm(dim=1) / expected.norm(dim=1).clamp_min(1e-30)).max().item()
    if not error <= most_error:
        raise LogitsMismatch(f"relative difference {error:.1e} from the logits of the default")
