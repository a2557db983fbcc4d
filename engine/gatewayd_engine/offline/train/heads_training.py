"""Training loop of draft heads on a model's own answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from gatewayd_engine.model.loading.tensor_sources import SafetensorsSource
from gatewayd_engine.model.spec import read_spec
from gatewayd_engine.offline.train.answers import Answers
from gatewayd_engine.offline.train.heads import EagleHead, MedusaHeads, eagle_loss, medusa_loss
from gatewayd_engine.offline.train.model import Llama, Size
from gatewayd_engine.offline.train.training import LAST_RATE, Schedule

KINDS = ("medusa", "eagle")
RANKS = 10
"""Top choices of a head whose accuracy is measured."""
STEP = 32
"""Row lengths of batches are rounded up to a multiple of this."""
VALIDATION = 20
"""One batch in this many is held out for validation."""


class TrainedHeads(NamedTuple):
    """Heads after training.

    Attributes:
        heads: trained.
        steps: number of training steps.
        first_loss, validation_loss: losses as defined in ``train.heads``.
        accuracy: for Medusa, how often each head's first, second, ... choice was correct.
    """

    heads: MedusaHeads | EagleHead
    steps: int
    first_loss: float
    validation_loss: float
    accuracy: Sequence[Sequence[float]]


class Batch(NamedTuple):
    """Rows of similar length.

    Attributes:
        ids: padded, shape ``[n, length]``.
        of: mask of the tokens to predict, shape ``[n, length]``.
        features: hidden states of the model, bfloat16, shape ``[n, length, hidden]``.
    """

    ids: torch.Tensor
    of: torch.Tensor
    features: torch.Tensor


def base_model(folder: Path) -> Llama:
    """Load a checkpoint made by ``offline.train`` in bfloat16, to compute hidden states."""
    spec = read_spec(folder, None)
    size = Size(
        hidden=spec.hidden_size,
        layers=spec.num_layers,
        heads=spec.num_heads,
        kv_heads=spec.num_kv_heads,
        intermediate=spec.intermediate_size,
        vocab=spec.vocab_size,
        head_dim=spec.head_dim,
    )
    model = Llama(size)
    source = SafetensorsSource(folder)
    model.load_state_dict(
        {name.removeprefix("model."): source.read(name) for name in source.stored}
    )
    source.close()
    return model.to(torch.bfloat16).requires_grad_(False)


@torch.no_grad()
def batches(
    model: Llama, answers: Answers, tokens: int, progress: Callable[[float, int], None]
) -> list[Batch]:
    """Compute the hidden states of all rows.

    Args:
        model: that generated the rows.
        answers: the rows.
        tokens: tokens per batch, padding included.
        progress: called with the fraction done and the number of rows.
    """
    made: list[Batch] = []
    done = 0
    # Few distinct shapes: the setup of a matrix product of a new shape outlasts the product.
    rounded = -(-answers.lengths // STEP) * STEP
    for length in np.unique(rounded).tolist():
        rows = np.flatnonzero(rounded == length)
        size = max(1, tokens // length)
        for begin in range(0, len(rows), size):
            # A last, smaller batch repeats rows, so that its shape is not new.
            some = np.resize(rows[begin : begin + size], size)
            ids = torch.from_numpy(answers.ids[some, :length].astype(np.int64))
            at = np.arange(length)
            of = (at >= answers.begins[some][:, None]) & (at < answers.lengths[some][:, None])
            made.append(Batch(ids, torch.from_numpy(of), model.hidden(ids)))
            done += len(rows[begin : begin + size])
            progress(done / len(rounded), done)
    return made


def train_heads(
    kind: str,
    model: Llama,
    made: Sequence[Batch],
    schedule: Schedule,
    progress: Callable[[float, int, float], None],
) -> TrainedHeads:
    """Train heads of a kind.

    Args:
        kind: ``medusa`` or ``eagle``.
        model: the frozen base model.
        made: see ``batches``.
        schedule: budget and learning rates.
        progress: called with the fraction done, the step and its loss.
    """
    torch.manual_seed(schedule.seed)
    hidden, head = model.size.hidden, model.embed_tokens.weight
    heads = MedusaHeads(hidden) if kind == "medusa" else EagleHead(hidden)
    random = Random(schedule.seed)
    # Batches are made by length: shuffled, validation has all lengths.
    kept = random.sample(made, len(made))
    validation, training = kept[::VALIDATION], [b for i, b in enumerate(kept) if i % VALIDATION]

    def loss_of(batch: Batch) -> torch.Tensor:
        features = batch.features.float()
        with torch.autocast("cpu", torch.bfloat16):
            if isinstance(heads, MedusaHeads):
                return medusa_loss(heads, head, features, batch.ids, batch.of)
            return eagle_loss(heads, head, features, batch.ids, batch.of)

    optimizer = _optimizer(heads, schedule)
    step, first_loss, begin = 0, 0.0, time.monotonic()
    following = _endless(training, random)
    while (done := schedule.done(step, time.monotonic() - begin)) < 1:
        warmup = min(1.0, (step + 1) / schedule.warmup_steps)
        for group in optimizer.param_groups:
            group["lr"] = schedule.learning_rate * warmup * (1 - done * (1 - LAST_RATE))
        loss = loss_of(next(following))
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(heads.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        first_loss = first_loss or loss.item()
        progress(done, step, loss.item())
    with torch.no_grad():
        losses = [loss_of(batch).item() for batch in validation]
        right = _accuracy(heads, head, validation) if isinstance(heads, MedusaHeads) else ()
    return TrainedHeads(heads, step, first_loss, sum(losses) / len(losses), right)


def _accuracy(medusa: MedusaHeads, head: torch.Tensor, made: Sequence[Batch]) -> list[list[float]]:
    """Compute how often each head's choices are correct, by their rank."""
    right = torch.zeros(medusa.num_heads, RANKS)
    asked = torch.zeros(medusa.num_heads, 1)
    for batch in made:
        states = medusa(batch.features.float().flatten(0, 1)).unflatten(1, batch.ids.shape)
        for i, of_head in enumerate(states):
            # The model predicts the token after a hidden state, head i the one i + 1 tokens
            # further.
            wanted = batch.of[:, 2 + i :]
            logits = functional.linear(of_head[:, : -2 - i][wanted], head.float())
            labels = batch.ids[:, 2 + i :][wanted].unsqueeze(1)
            right[i] += (logits.topk(RANKS).indices == labels).sum(0)
            asked[i] += len(labels)
    shares: list[list[float]] = (right / asked.clamp(min=1)).tolist()
    return shares


def _optimizer(heads: nn.Module, schedule: Schedule) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        heads.parameters(),
        lr=schedule.learning_rate,
        betas=(0.9, 0.98),
        weight_decay=schedule.weight_decay,
        fused=True,
    )


def _endless(made: Sequence[Batch], random: Random) -> Iterator[Batch]:
    """Yield batches forever, in a new random order for each epoch."""
    while True:
        yield from random.sample(made, len(made))
