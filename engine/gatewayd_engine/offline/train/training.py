"""Training loop: AdamW with linear warm-up and linear decay to the end of the budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from gatewayd_engine.offline.train.model import Llama, Size
from gatewayd_engine.offline.train.tokenizer import PAD_ID

MOST_VALIDATION_ROWS = 128
LAST_RATE = 0.02
"""Final learning rate as a fraction of the peak."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Training budget and hyperparameters.

    On a CPU a run with a number of steps is deterministic for a seed; one with seconds is not.
    """

    seconds: float | None = None
    steps: int | None = None
    batch_rows: int = 64
    learning_rate: float = 2e-3
    warmup_steps: int = 200
    weight_decay: float = 0.05
    seed: int = 1

    def __post_init__(self) -> None:
        if (self.seconds is None) == (self.steps is None):
            raise ValueError("give seconds or steps, one of them")

    def done(self, step: int, elapsed_seconds: float) -> float:
        """Return the fraction of the budget that is used."""
        if self.steps is not None:
            return step / self.steps
        return elapsed_seconds / (self.seconds or 1.0)


@dataclass(frozen=True, slots=True)
class Trained:
    """A model after training; losses are in nats per token."""

    model: Llama
    steps: int
    first_loss: float
    last_loss: float
    validation_loss: float


def train(
    rows: NDArray[np.uint16],
    size: Size,
    schedule: Schedule,
    device: str,
    progress: Callable[[float, int, float], None],
) -> Trained:
    """Train a model.

    Args:
        rows: token ids, shape ``[num_rows, length + 1]``.
        size: of the model.
        schedule: budget and rates.
        device: ``cpu`` (float32) or ``cuda`` (bfloat16 autocast, compiled).
        progress: called with the fraction done, the step and its loss.

    Raises:
        ValueError: there are too few rows for one batch.
    """
    torch.manual_seed(schedule.seed)
    shuffled = torch.from_numpy(rows.astype(np.int64))
    shuffled = shuffled[torch.randperm(len(shuffled))].to(device)
    num_validation = min(MOST_VALIDATION_ROWS, len(shuffled) // 10)
    validation, training = shuffled[:num_validation], shuffled[num_validation:]
    if num_validation == 0 or len(training) < schedule.batch_rows:
        raise ValueError(
            f"{len(rows)} rows are too few: a tenth is held out for validation, and a batch takes"
            f" {schedule.batch_rows}"
        )

    model = Llama(size)
    model.initialize()
    model.to(device)
    forward = torch.compile(model) if device == "cuda" else model
    optimizer = _optimizer(model, schedule)

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            logits = forward(batch[:, :-1])
        targets = batch[:, 1:].flatten()
        return functional.cross_entropy(logits.float().flatten(0, 1), targets, ignore_index=PAD_ID)

    batches = _batches(training, schedule.batch_rows)
    # Compile before the time budget starts.
    loss_of(training[: schedule.batch_rows]).backward()  # type: ignore[no-untyped-call]
    optimizer.zero_grad()
    step, first_loss, last_loss, begin = 0, 0.0, 0.0, time.monotonic()
    while (done := schedule.done(step, time.monotonic() - begin)) < 1:
        warmup = min(1.0, (step + 1) / schedule.warmup_steps)
        for group in optimizer.param_groups:
            group["lr"] = schedule.learning_rate * warmup * (1 - done * (1 - LAST_RATE))
        loss = loss_of(next(batches))
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step == 1 or step % 10 == 0:  # reading it waits for the device
            last_loss = loss.item()
            first_loss = first_loss or last_loss
            progress(done, step, last_loss)
    with torch.inference_mode():
        parts = torch.split(validation, schedule.batch_rows)
        losses = [loss_of(part).item() for part in parts]
    progress(1.0, step, last_loss)
    return Trained(model, step, first_loss, last_loss, sum(losses) / len(losses))


def _optimizer(model: Llama, schedule: Schedule) -> torch.optim.Optimizer:
    # Norm weights are not decayed.
    matrices = [parameter for parameter in model.parameters() if parameter.dim() == 2]
    others = [parameter for parameter in model.parameters() if parameter.dim() != 2]
    groups = [
        {"params": matrices, "weight_decay": schedule.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=schedule.learning_rate, betas=(0.9, 0.98), fused=True)


def _batches(rows: torch.Tensor, size: int) -> Iterator[torch.Tensor]:
    """Yield batches forever, in a new random order for each epoch."""
    while True:
        order = torch.randperm(len(rows))
        for start in range(0, len(rows) - size + 1, size):
            yield rows[order[start : start + size]]
