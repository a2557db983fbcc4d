"""Outputs of a runner's steps that a test changes, whether steps overlap or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gatewayd_engine.model.fused.data import StepOutputs
from gatewayd_engine.runner.cpu import Runner
from gatewayd_engine.state.step_batch import StepBatch


def spoil(
    patch: pytest.MonkeyPatch, runner: Runner, change: Callable[[StepBatch, StepOutputs], None]
) -> None:
    """Let a function change what each step has computed, before tokens are chosen."""
    forward, started = runner._forward, runner._started

    def spoilt(batch: StepBatch, *rest: Any) -> StepOutputs:
        outputs = forward(batch, *rest)
        change(batch, outputs)
        return outputs

    def spoilt_start(batch: StepBatch, *rest: Any) -> Any:
        flight = started(batch, *rest)
        flight.step.join()
        with torch.inference_mode():
            change(batch, flight.outputs)
        return flight

    patch.setattr(runner, "_forward", spoilt)
    patch.setattr(runner, "_started", spoilt_start)
