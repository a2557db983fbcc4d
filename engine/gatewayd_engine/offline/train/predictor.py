"""A small convolution that foresees what tokens will attend to, and how it is trained.

After AttentionPredictor (arXiv 2502.04077): what a place will get follows from what it and its
neighbours got. Here that is not an image of the last rows but three means of them, which forget at
different paces, beside the last row and the distance; and what is foreseen is what all tokens up to
the next one that attends to all will attend to.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple

import torch
from torch import nn

RATES = (0.4, 0.15, 0.05)
"""How far the means of attention move with each token that is seen."""
CHANNELS = len(RATES) + 2
WARM, EVERY = 32, 16
"""As served: tokens that attend to all before any attends to few, and each how many one does."""
FLOOR = 0.01
"""Less attention than this part of an even share looks like none."""
_BUDGETS = (0.25, 0.125, 0.125, 0.0625)


class PredictorNetwork(nn.Module):
    """Scores of places from features of ``image``."""

    def __init__(self, wide: int = 8, first: int = 9, last: int = 9) -> None:
        super().__init__()
        self.first = nn.Conv1d(CHANNELS, wide, first, padding="same")
        self.last = nn.Conv1d(wide, 1, last, padding="same")
        # It begins as the mean of what places got, and learns what that misses.
        self.skip = nn.Conv1d(CHANNELS, 1, 1)
        nn.init.zeros_(self.last.weight)
        nn.init.constant_(self.skip.weight, 4 / len(RATES))
        nn.init.zeros_(self.skip.weight[:, :1])
        nn.init.zeros_(self.skip.weight[:, -1:])

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Logits ``[n, places]`` of ``[n, CHANNELS, places]``."""
        scores: torch.Tensor = self.last(torch.relu(self.first(image))) + self.skip(image)
        return scores.squeeze(1)


def image(last: torch.Tensor, means: torch.Tensor) -> torch.Tensor:
    """What the network looks at.

    Args:
        last: what the last token that attended to all gave to places, ``[n, places]``.
        means: what they got, ``[n, len(RATES), places]``.
    """
    count, places = last.shape
    seen = torch.cat((last[:, None], means), 1)
    away = torch.arange(places, 0, -1, dtype=torch.float32).log2().mul_(0.2)
    seen = (seen * places).add_(FLOOR).log_().mul_(0.25)
    return torch.cat((seen, away.expand(count, 1, places)), 1)


class Trace(NamedTuple):
    """Attention of the last tokens of texts of one length.

    Attributes:
        mass: of places, each token's sum 1, ``[n, tokens, places]``; n is texts, layers and heads.
        begin: tokens before the first of them.
    """

    mass: torch.Tensor
    begin: int


class TrainingRound(NamedTuple):
    """What is known when places are chosen, and what the next tokens attend to.

    Attributes:
        image: see ``image``, ``[n, CHANNELS, places]``.
        truth: attention of the tokens that attend to few next, the sum over them, of places that
            there are when they are chosen, ``[n, places]``.
    """

    image: torch.Tensor
    truth: torch.Tensor


class Decoding:
    """Serves a trace as an engine would, for training: what is not attended to is not seen."""

    def __init__(self, trace: Trace, budget: float) -> None:
        self._trace = trace
        self._budget = budget
        n, _, places = trace.mass.shape
        self._last = torch.zeros(n, places)
        self._means = torch.zeros(n, len(RATES), places)
        self._rates = torch.tensor(RATES)[:, None]
        self._given = torch.zeros(n, places)
        self._times = torch.zeros(n, places)
        self._num_whole = 0
        self._step = 0

    def rounds(self) -> Iterator[TrainingRound]:
        """Up to where places are chosen, again and again; ``advance`` has to choose them."""
        tokens = self._trace.mass.shape[1]
        while self._step < tokens:
            self._see_all()
            length = self._trace.begin + self._step
            end = min(self._step + EVERY - 1 - length % EVERY, tokens)
            if self._step < WARM or end == self._step:
                continue
            truth = self._trace.mass[:, self._step : end, :length].float().sum(1)
            yield TrainingRound(image(self._last[:, :length], self._means[..., :length]), truth)

    def advance(self, scores: torch.Tensor) -> torch.Tensor:
        """Let the next tokens attend to the places of highest scores, up to one that sees all.

        Returns:
            How much of their attention is in them, ``[n, tokens]``.
        """
        chosen_at = scores.shape[1]
        slots = min(max(math.ceil(chosen_at * self._budget), 2 * EVERY), chosen_at)
        best = scores.topk(slots, -1).indices
        found = []
        while (length := self._trace.begin + self._step + 1) % EVERY:
            if self._step == self._trace.mass.shape[1]:
                break
            sees = torch.zeros_like(self._given)
            sees.scatter_(1, best[:, : slots - (length - chosen_at)], 1.0)
            sees[:, chosen_at:length] = 1.0
            mass = self._trace.mass[:, self._step].float() * sees
            found.append(mass.sum(1))
            # Whose slots are given to newer ones is not remembered.
            self._given.mul_(sees).add_(mass / found[-1][:, None])
            self._times.mul_(sees).add_(sees)
            self._step += 1
        return torch.stack(found, 1)

    def _see_all(self) -> None:
        """Let a token attend to all; what was seen of few before comes first."""
        times = self._times[:, None]
        far = 1 - (1 - self._rates) ** times
        given = (self._given / self._times.clamp_min(1))[:, None]
        self._means += (given - self._means) * far
        self._given.zero_()
        self._times.zero_()
        self._num_whole += 1
        self._last = self._trace.mass[:, self._step].float()
        self._means += (self._last[:, None] - self._means) * self._rates.clamp_min(
            1 / self._num_whole
        )
        self._step += 1


class TrainedNetwork(NamedTuple):
    """A network after training.

    Attributes:
        network: trained.
        steps: of the optimizer.
        first_loss, last_loss: cross-entropy of places, over the first and the last hundred.
    """

    network: PredictorNetwork
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
    dice, network = Random(seed), PredictorNetwork()
    optimizer = torch.optim.AdamW(network.parameters(), learning_rate, weight_decay=0.0)
    total = epochs * len(traces)
    losses: list[float] = []
    told = time.monotonic()
    for served in range(total):
        if served % len(traces) == 0:
            order = dice.sample(traces, len(traces))
        done = served / total
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * min(20 * (done + 1 / total), 1 - done)
        decoding = Decoding(order[served % len(traces)], dice.choice(_BUDGETS))
        for image, truth in decoding.rounds():
            scores = network(image)
            truth = truth / truth.sum(-1, keepdim=True)
            loss = -(truth * torch.log_softmax(scores, -1)).sum(-1).mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            decoding.advance(scores.detach())
            losses.append(loss.item())
            if time.monotonic() - told > 1:
                told = time.monotonic()
                tell(done, len(losses), sum(losses[-100:]) / len(losses[-100:]))
    first, last = losses[:100], losses[-100:]
    return TrainedNetwork(network, len(losses), sum(first) / len(first), sum(last) / len(last))
