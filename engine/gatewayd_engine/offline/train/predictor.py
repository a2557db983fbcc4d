"""Convolutional predictor of attention weights, for KV selection, and its training.

After AttentionPredictor (arXiv 2502.04077): the attention that a position will get is predicted
from what it and its neighbours got. Here the input is not an image of the last rows but three
exponential means of them with different rates, with the last row and the distance; the target is
the attention of all tokens up to the next one with full attention.
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
"""Update rates of the exponential means of attention, per observed token."""
CHANNELS = len(RATES) + 2
WARM, EVERY = 32, 16
"""As when serving: number of initial tokens with full attention, and its period after those."""
FLOOR = 0.01
"""Attention below this fraction of a uniform share counts as none."""
_BUDGETS = (0.25, 0.125, 0.125, 0.0625)


class PredictorNetwork(nn.Module):
    """Convolutional network that scores positions from the features of ``image``."""

    def __init__(self, wide: int = 8, first: int = 9, last: int = 9) -> None:
        super().__init__()
        self.first = nn.Conv1d(CHANNELS, wide, first, padding="same")
        self.last = nn.Conv1d(wide, 1, last, padding="same")
        # Initialised to the mean attention of positions; training learns the difference.
        self.skip = nn.Conv1d(CHANNELS, 1, 1)
        nn.init.zeros_(self.last.weight)
        nn.init.constant_(self.skip.weight, 4 / len(RATES))
        nn.init.zeros_(self.skip.weight[:, :1])
        nn.init.zeros_(self.skip.weight[:, -1:])

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Map features ``[n, CHANNELS, positions]`` to logits ``[n, positions]``."""
        scores: torch.Tensor = self.last(torch.relu(self.first(image))) + self.skip(image)
        return scores.squeeze(1)


def image(last: torch.Tensor, means: torch.Tensor) -> torch.Tensor:
    """Compute the input features of the network, ``[n, CHANNELS, positions]``.

    Args:
        last: attention of the last token with full attention, ``[n, positions]``.
        means: exponential means of attention, ``[n, len(RATES), positions]``.
    """
    count, positions = last.shape
    seen = torch.cat((last[:, None], means), 1)
    away = torch.arange(positions, 0, -1, dtype=torch.float32).log2().mul_(0.2)
    # Relative to a uniform share, so that features do not depend on the length.
    seen = (seen * positions).add_(FLOOR).log_().mul_(0.25)
    return torch.cat((seen, away.expand(count, 1, positions)), 1)


class Trace(NamedTuple):
    """Recorded attention of the last tokens of texts of one length.

    Attributes:
        mass: attention weights, which sum to 1 for each token, ``[n, tokens, positions]``; n runs
            over texts, layers and heads.
        begin: number of tokens before the first of these.
    """

    mass: torch.Tensor
    begin: int


class TrainingRound(NamedTuple):
    """Features at the time of a selection, and the attention to be predicted.

    Attributes:
        image: features, ``[n, CHANNELS, positions]``; see ``image``.
        truth: attention of the next tokens with selection, summed over them, for the positions
            that exist at the time of the selection, ``[n, positions]``.
    """

    image: torch.Tensor
    truth: torch.Tensor


class Decoding:
    """Simulation of decoding with KV selection: only attention to selected positions is seen.

    Args:
        trace: recorded attention.
        budget: fraction of positions to select.
    """

    def __init__(self, trace: Trace, budget: float) -> None:
        self._trace = trace
        self._budget = budget
        n, _, positions = trace.mass.shape
        self._last = torch.zeros(n, positions)
        self._means = torch.zeros(n, len(RATES), positions)
        self._rates = torch.tensor(RATES)[:, None]
        self._given = torch.zeros(n, positions)
        self._times = torch.zeros(n, positions)
        self._num_whole = 0
        self._step = 0

    def rounds(self) -> Iterator[TrainingRound]:
        """Yield a round for each selection; call ``advance`` with the scores before the next."""
        tokens = self._trace.mass.shape[1]
        while self._step < tokens:
            self._see_all()
            length = self._trace.begin + self._step
            # Tokens whose context length is a multiple of ``EVERY`` attend fully, the first
            # ``WARM`` too.
            end = min(self._step + EVERY - 1 - length % EVERY, tokens)
            if self._step < WARM or end == self._step:
                continue
            # Later positions do not exist yet: they are always selected, and not predicted.
            truth = self._trace.mass[:, self._step : end, :length].float().sum(1)
            yield TrainingRound(image(self._last[:, :length], self._means[..., :length]), truth)

    def advance(self, scores: torch.Tensor) -> torch.Tensor:
        """Decode with the positions of highest scores, up to the next token with full attention.

        Returns:
            Fraction of each token's attention that the selection covers, ``[n, tokens]``.
        """
        chosen_at = scores.shape[1]
        slots = min(max(math.ceil(chosen_at * self._budget), 2 * EVERY), chosen_at)
        best = scores.topk(slots, -1).indices
        found = []
        while (length := self._trace.begin + self._step + 1) % EVERY:
            if self._step == self._trace.mass.shape[1]:
                break
            sees = torch.zeros_like(self._given)
            # Newer positions take the slots with the lowest scores.
            sees.scatter_(1, best[:, : slots - (length - chosen_at)], 1.0)
            sees[:, chosen_at:length] = 1.0
            mass = self._trace.mass[:, self._step].float() * sees
            found.append(mass.sum(1))
            # Positions that lose their slot to newer ones lose their statistics.
            self._given.mul_(sees).add_(mass / found[-1][:, None])
            self._times.mul_(sees).add_(sees)
            self._step += 1
        return torch.stack(found, 1)

    def _see_all(self) -> None:
        """Decode a token with full attention, after merging what was seen since the last one."""
        times = self._times[:, None]
        # Closed form of ``times`` updates of an exponential mean with the average of what was
        # observed.
        far = 1 - (1 - self._rates) ** times
        given = (self._given / self._times.clamp_min(1))[:, None]
        self._means += (given - self._means) * far
        self._given.zero_()
        self._times.zero_()
        self._num_whole += 1
        self._last = self._trace.mass[:, self._step].float()
        # A plain mean of the first tokens, until an exponential one has forgotten its start.
        self._means += (self._last[:, None] - self._means) * self._rates.clamp_min(
            1 / self._num_whole
        )
        self._step += 1


class TrainedNetwork(NamedTuple):
    """A network after training.

    Attributes:
        network: trained.
        steps: number of optimizer steps.
        first_loss, last_loss: mean cross-entropy over the first and the last hundred steps.
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
    report: Callable[[float, int, float], None],
) -> TrainedNetwork:
    """Train a network on attention that is observed under its own selections.

    Args:
        traces: recorded attention to train on.
        epochs: passes over the traces.
        learning_rate: peak rate; it declines to 0.
        seed: for weights and order.
        report: called with the fraction done, the number of steps and the loss.
    """
    torch.manual_seed(seed)
    dice, network = Random(seed), PredictorNetwork()
    optimizer = torch.optim.AdamW(network.parameters(), learning_rate, weight_decay=0.0)
    total = epochs * len(traces)
    losses: list[float] = []
    reported = time.monotonic()
    for served in range(total):
        if served % len(traces) == 0:
            order = dice.sample(traces, len(traces))
        done = served / total
        for group in optimizer.param_groups:
            # Linear warm-up over the first twentieth, then linear decay.
            group["lr"] = learning_rate * min(20 * (done + 1 / total), 1 - done)
        decoding = Decoding(order[served % len(traces)], dice.choice(_BUDGETS))
        for image, truth in decoding.rounds():
            scores = network(image)
            truth = truth / truth.sum(-1, keepdim=True)
            loss = -(truth * torch.log_softmax(scores, -1)).sum(-1).mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            # The network observes what its own selections reveal, as when serving.
            decoding.advance(scores.detach())
            losses.append(loss.item())
            if time.monotonic() - reported > 1:
                reported = time.monotonic()
                report(done, len(losses), sum(losses[-100:]) / len(losses[-100:]))
    first, last = losses[:100], losses[-100:]
    return TrainedNetwork(network, len(losses), sum(first) / len(first), sum(last) / len(last))
