"""Fake drafters with known answers: right, wrong, chains, trees, sampled."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from gatewayd_hooks.speculation import DraftBatch, Drafts
from gatewayd_hooks.strategy import Kind

VOCAB = 4096


class Guess:
    """Guesses from known sequences, each token right with some probability.

    Args:
        known: whole sequences, prompt and answer; the one that a row begins is looked up.
        right: probability of a right token.
        shape: ``chain`` or ``tree``.
        vocab: of the model.
    """

    def __init__(
        self,
        known: list[list[int]],
        right: float,
        shape: str,
        seed: int = 0,
        vocab: int = VOCAB,
    ) -> None:
        self._vocab = vocab
        self._known = known
        self._right = right
        self._shape = shape
        self._random = random.Random(seed)

    def admit(self, row: int) -> None:
        pass

    def close(self) -> None:
        pass

    def _next(self, tokens: list[int], ahead: int) -> int:
        """The right token so many places ahead, or another one."""
        for known in self._known:
            if known[: len(tokens)] == tokens and len(known) > len(tokens) + ahead:
                right = known[len(tokens) + ahead]
                return right if self._random.random() < self._right else (right + 1) % self._vocab
        return self._random.randrange(2, self._vocab)

    def propose(self, batch: DraftBatch) -> Drafts:
        width = int(batch.limits.max())
        tokens = np.zeros((len(batch.rows), width), np.int32)
        parents = np.full(tokens.shape, -1, np.int32)
        counts = np.array([self._random.randint(0, limit) for limit in batch.limits.tolist()])
        for i, row in enumerate(batch.rows.tolist()):
            own = batch.tokens[row, : batch.lengths[i]].tolist()
            depths: list[int] = []
            for j in range(int(counts[i])):
                parent = j - 1 if self._shape == "chain" else self._random.randint(-1, j - 1)
                depths.append(0 if parent < 0 else depths[parent] + 1)
                parents[i, j] = parent
                tokens[i, j] = self._next(own, depths[j])
        if self._shape == "chain":
            return Drafts(tokens, counts.astype(np.int32))
        return Drafts(tokens, counts.astype(np.int32), parents)


class Always(Guess):
    """Guesses as much as it may, every time."""

    def propose(self, batch: DraftBatch) -> Drafts:
        width = int(batch.limits.max())
        tokens = np.zeros((len(batch.rows), width), np.int32)
        for i, row in enumerate(batch.rows.tolist()):
            own = batch.tokens[row, : batch.lengths[i]].tolist()
            tokens[i] = [self._next(own, ahead) for ahead in range(width)]
        return Drafts(tokens, batch.limits.astype(np.int32))


class Drawn(Guess):
    """Draws each token from a distribution of its own and says which."""

    def propose(self, batch: DraftBatch) -> Drafts:
        width = int(batch.limits.max())
        rng = np.random.default_rng(self._random.randrange(2**32))
        probs = rng.random((len(batch.rows), width, VOCAB)) ** 8
        probs /= probs.sum(-1, keepdims=True)
        at = (probs.cumsum(-1) < batch.uniform[..., None]).sum(-1)
        counts = np.minimum(batch.limits, width).astype(np.int32)
        return Drafts(at.astype(np.int32), counts, None, torch.from_numpy(probs).float())


def guess_with(engine: Any, drafter: Any) -> Any:
    """Let an engine, made with any drafter, use this one."""
    seat(engine.core.strategies, Kind.DRAFTER, drafter)
    return engine


def seat(strategies: Any, kind: Kind, strategy: Any) -> None:
    """Let a strategy fill a slot as one from the configuration does."""
    strategies.bound[kind] = strategy
    strategies.watched[kind] = strategies.plugin_times.watch(kind, "scripted", strategy)


def chain(batch: DraftBatch, token: int = 7, **changes: Any) -> Drafts:
    n, width = len(batch.rows), int(batch.limits.max())
    good = Drafts(np.full((n, width), token, np.int32), batch.limits.astype(np.int32))
    return good._replace(**{name: change(good) for name, change in changes.items()})


class Broken(Guess):
    """Guesses well, and then or always does something else.

    Args:
        propose: what it does.
        after: guesses before that.
    """

    def __init__(self, propose: Callable[[DraftBatch], Any], after: int) -> None:
        super().__init__([], 0.0, "chain")
        self._broken = propose
        self._after = after

    def propose(self, batch: DraftBatch) -> Drafts:
        self._after -= 1
        if self._after >= 0:
            return super().propose(batch)
        answer: Drafts = self._broken(batch)
        return answer
