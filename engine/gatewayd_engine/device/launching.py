"""Chooses how a step's kernels are launched, by timing decode steps each way."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch

from gatewayd_engine.device.runner import DeviceRunner
from gatewayd_engine.kernels.base import Kernels
from gatewayd_engine.model.linears.fusion import MOST_LINES, Fusion
from gatewayd_engine.tuning.clock import Clock, surviving
from gatewayd_engine.tuning.table import Table, case

_LINES = 8
"""Of the step for which early launches are timed. They count most where a step is short, and are
the same kernels with more lines."""
_MOST_ERROR = 5e-2
"""Of a line of logits, relative to its length: products round otherwise in each layer."""


_log = logging.getLogger(__name__)


class Differs(Exception):
    """The same step computes something else."""


def choose_launches(runner: DeviceRunner, kernels: Kernels, table: Table, clock: Clock) -> None:
    """Set ``launches_early``.

    Args:
        runner: of an engine that has no sequence yet.
        kernels: of its device.
        table: what is known, and kept.
        clock: measures.
    """

    def use(name: str) -> None:
        kernels.launches_early = name == "early"

    if kernels.can_launch_early:
        lines = min(_LINES, runner.max_lines)
        # The same kernels make the same numbers.
        _choose("launches", lines, ("in turn", "early"), use, runner, table, clock, 0.0)


def choose_fusion(
    runner: DeviceRunner, fusion: Fusion, sizes: Sequence[int], table: Table, clock: Clock
) -> None:
    """Set the numbers of lines for which norms and gates are fused.

    Args:
        runner: of an engine that has no sequence yet.
        fusion: of its decoder.
        sizes: numbers of lines that will be captured.
        table: what is known, and kept.
        clock: measures.
    """
    for lines in [size for size in sizes if size <= min(MOST_LINES, runner.max_lines)]:

        def use(name: str, lines: int = lines) -> None:
            (fusion.lines.add if name == "fused" else fusion.lines.discard)(lines)

        if fusion.is_possible:
            names = ("apart", "fused")
            _choose("norms and gates", lines, names, use, runner, table, clock, _MOST_ERROR)


@torch.inference_mode()
def _choose(
    op: str,
    lines: int,
    names: tuple[str, str],
    use: Callable[[str], None],
    runner: DeviceRunner,
    table: Table,
    clock: Clock,
    most_error: float,
) -> None:
    """Leave the faster way in use.

    Args:
        op: what is decided.
        lines: of the decode step that is timed.
        names: of both ways; the first is the default.
        use: takes a way into use.
        runner: of an engine that has no sequence yet.
        table: what is known, and kept.
        clock: measures.
        most_error: of a line of logits, relative to its length.
    """
    try:
        step = runner.uncaptured(lines)
    except Exception as error:  # noqa: BLE001 - of any library; what cannot be captured is told then
        _log.warning("%s of %d lines cannot be measured", op, lines, exc_info=error)
        return
    if step is None:
        return
    logits = runner.logits[:lines]
    expected: list[torch.Tensor] = []

    def measure(name: str) -> float:
        use(name)
        logits.fill_(torch.nan)
        with surviving(logits.device, f"{op}, {name}"):
            microseconds = clock([step])
            expected.append(logits.to(torch.float32, copy=True))
            _compare(expected[-1], expected[0], most_error)
        return microseconds

    which = case(
        op,
        str(logits.dtype).removeprefix("torch."),
        m=lines,
        **runner.step_sizes,
    )
    choice = names[0]
    try:
        choice = table.chosen(which, names, measure)
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
