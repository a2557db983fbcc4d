"""Chooses whether a step's kernels are launched early, by timing a decode step both ways."""

from __future__ import annotations

import torch

from gatewayd_engine.device.runner import DeviceRunner
from gatewayd_engine.kernels.base import Kernels
from gatewayd_engine.tuning.clock import Clock, surviving
from gatewayd_engine.tuning.table import Table, case

OP = "launches"
_IN_TURN, _EARLY = "in turn", "early"
_LINES = 8
"""Launches count most where a step is short; with more lines they are the same kernels."""


class Differs(Exception):
    """The same step computes something else: a kernel did not wait."""


@torch.inference_mode()
def choose_launches(runner: DeviceRunner, kernels: Kernels, table: Table, clock: Clock) -> None:
    """Set ``launches_early``.

    Args:
        runner: of an engine that has no sequence yet.
        kernels: of its device.
        table: what is known, and kept.
        clock: measures.
    """
    lines = min(_LINES, runner.max_lines)
    step = runner.uncaptured(lines) if kernels.can_launch_early else None
    if step is None:
        return
    logits = runner.logits[:lines]
    expected: torch.Tensor | None = None

    def measure(name: str) -> float:
        nonlocal expected
        kernels.launches_early = name == _EARLY
        logits.fill_(torch.nan)
        with surviving(logits.device, f"launches {name}"):
            microseconds = clock([step])
        if expected is None:
            expected = logits.clone()
        elif not torch.equal(expected, logits):
            raise Differs("logits differ from those of launches in turn")
        return microseconds

    spec = runner.spec
    which = case(
        OP,
        str(logits.dtype).removeprefix("torch."),
        lines=lines,
        layers=spec.num_layers,
        hidden=spec.hidden_size,
        heads=spec.num_heads,
        vocab=spec.vocab_size,
    )
    try:
        choice = table.chosen(which, [_IN_TURN, _EARLY], measure)
    finally:
        kernels.launches_early = False
    kernels.launches_early = choice == _EARLY
