"""A small convolution that foresees what a token will attend to, and how it is trained.

After AttentionPredictor (arXiv 2502.04077): the attention of the last tokens, over blocks of
neighbouring places, is an image, and the row that comes next is what is asked for. Here all rows of
the image are channels of a convolution over blocks, which is as cheap as looking at a row; beside
them stands what each block has got since decoding began, and how far away it is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from random import Random
from typing import NamedTuple

import torch
from torch import nn

ROWS = 16
"""Tokens that the image shows."""
CHANNELS = ROWS + 2
WARM, EVERY = 32, 16
"""As served: tokens that attend to all before any attends to few, and each how many one does."""
FLOOR = 1e-5
"""Less attention than this looks like none."""
_BUDGETS = (0.25, 0.125, 0.125, 0.0625)
_NEWEST = 2


class Network(nn.Module):
    """Scores of blocks from features of ``image``."""

    def __init__(self, wide: int = 32, narrow: int = 24) -> None:
        super().__init__()
        self.first = nn.Conv1d(CHANNELS, wide, 3, padding=1)
        self.second = nn.Conv1d(wide, narrow, 3, padding=1)
        self.last = nn.Conv1d(narrow, 1, 3, padding=1)
        # It begins as the mean of the image, and learns what that misses.
        self.skip = nn.Conv1d(CHANNELS, 1, 1)
        nn.init.zeros_(self.last.weight)
        nn.init.constant_(self.skip.weight, 4 / ROWS)
        nn.init.zeros_(self.skip.weight[:, ROWS:])

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Logits ``[n, blocks]`` of ``[n, CHANNELS, blocks]``."""
        found = torch.relu(self.second(torch.relu(self.first(image))))
        scores: torch.Tensor = (self.last(found) + self.skip(image)).squeeze(1)
        return scores


def image(history: torch.Tensor, total: torch.Tensor, newest: torch.Tensor) -> torch.Tensor:
    """What the network looks at.

    Args:
        history: attention of blocks by the last tokens, oldest first, ``[n, ROWS, blocks]``.
        total: attention that each block has got from all tokens, ``[n, blocks]``.
        newest: the block of the token that is to come, ``[n]``.
    """
    away = newest[:, None] - torch.arange(history.shape[-1])
    distance = away.clamp_min(0).add(1).log2().mul_(0.2)
    seen = torch.cat((history, total[:, None]), 1).add(FLOOR).log_().mul_(0.25).add_(2)
    return torch.cat((seen, distance[:, None]), 1)


class Trace(NamedTuple):
    """Attention of the last tokens of texts of one length.

    Attributes:
        mass: of blocks, each token's sum 1, ``[n, tokens, blocks]``; n is texts, layers and heads.
        begin: tokens before the first of them.
        block: places of a block.
    """

    mass: torch.Tensor
    begin: int
    block: int


class Decoding:
    """Serves a trace as an engine would, for training: what is not attended to is not seen."""

    def __init__(self, trace: Trace, budget: float) -> None:
        self._trace = trace
        self._budget = budget
        n, _, blocks = trace.mass.shape
        self._history = torch.zeros(n, ROWS, blocks)
        self._total = torch.zeros(n, blocks)
        self.step = 0

    @property
    def newest(self) -> int:
        """The block of the token that is to come."""
        return (self._trace.begin + self.step) // self._trace.block

    def image(self) -> torch.Tensor:
        """What is known before the next token; see ``image``."""
        newest = torch.full((len(self._total),), self.newest)
        return image(self._history, self._total, newest)

    @property
    def truth(self) -> torch.Tensor:
        """What the next token attends to, ``[n, blocks]``."""
        return self._trace.mass[:, self.step]

    def advance(self, scores: torch.Tensor) -> torch.Tensor:
        """Let the next token attend, to all or to the blocks of highest scores.

        Returns:
            How much of its attention is in them, ``[n]``.
        """
        length = self._trace.begin + self.step + 1
        mass, newest = self.truth, self.newest
        chosen = torch.ones_like(mass)
        if self.step >= WARM and length % EVERY:
            count = max(math.ceil(length * self._budget) // self._trace.block, _NEWEST + 1)
            scores = scores.clone()
            scores[:, newest + 1 :] = -torch.inf
            scores[:, max(newest - _NEWEST + 1, 0) : newest + 1] = torch.inf
            scores[:, 0] = torch.inf
            chosen = torch.zeros_like(mass)
            chosen.scatter_(1, scores.topk(min(count, newest + 1)).indices, 1.0)
        seen = mass * chosen
        held = seen.sum(1)
        row = torch.where(chosen > 0, seen / held[:, None], self._history[:, -1])
        self._history = torch.cat((self._history[:, 1:], row[:, None]), 1)
        self._total += seen / held[:, None]
        self.step += 1
        return held


class TrainedNetwork(NamedTuple):
    """A network after training.

    Attributes:
        network: trained.
        steps: of the optimizer.
        first_loss, last_loss: cross-entropy of blocks, over the first and the last hundred.
    """

    network: Network
    steps: int
    first_loss: float
    last_loss: float


def train_network(
    traces: list[Trace],
    epochs: int,
    learning_rate: float,
    seed: int,
    tell: Callable[[float, int, float], None],
) -> TrainedNetwork:
    """Train on what is seen when the network itself chooses what is seen.

    Args:
        traces: to learn from.
        epochs: how often each is served.
        learning_rate: at first; it declines to none.
        seed: of weights and order.
        tell: part done, steps, loss.
    """
    torch.manual_seed(seed)
    dice, network = Random(seed), Network()
    optimizer = torch.optim.AdamW(network.parameters(), learning_rate, weight_decay=0.0)
    total = epochs * sum(trace.mass.shape[1] for trace in traces)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, learning_rate, total_steps=total + 1, pct_start=0.05
    )
    losses: list[float] = []
    told = time.monotonic()
    for _ in range(epochs):
        for trace in dice.sample(traces, len(traces)):
            decoding = Decoding(trace, dice.choice(_BUDGETS))
            for _ in range(trace.mass.shape[1]):
                end = decoding.newest + 1
                scores = network(decoding.image())
                truth = decoding.truth[:, :end]
                loss = -(truth * torch.log_softmax(scores[:, :end], -1)).sum(-1).mean()
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
                decoding.advance(scores.detach())
                losses.append(loss.item())
                if time.monotonic() - told > 1:
                    told = time.monotonic()
                    tell(len(losses) / total, len(losses), sum(losses[-100:]) / len(losses[-100:]))
    first, last = losses[:100], losses[-100:]
    return TrainedNetwork(network, len(losses), sum(first) / len(first), sum(last) / len(last))
