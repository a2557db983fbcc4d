"""Small model with draft heads, and drafters that see its hidden states."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gatewayd_engine.offline.train import heads as recipe
from gatewayd_engine.speculation.draft_heads import read_heads
from gatewayd_engine.speculation.draft_models import DraftTarget
from gatewayd_hooks.resources import EngineResources, Heads
from gatewayd_hooks.speculation import DraftBatch, Drafts, Features
from gatewayd_hooks.testing.fakes import engine_resources
from gatewayd_hooks.testing.speculation import DrafterConformance

HIDDEN, VOCAB, ROWS, CONTEXT = 8, 16, 4, 96
ACCURACY = [[0.7, 0.2, 0.05], [0.5, 0.3, 0.1], [0.4, 0.1, 0.1]]


class Words:
    """A model whose head is its embedding, and whose hidden states are those of three tokens."""

    hidden_size = HIDDEN
    dtype = torch.float32

    def __init__(self) -> None:
        self.matrix = torch.randn(VOCAB, HIDDEN, generator=torch.manual_seed(3))

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        return self.matrix[ids]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ self.matrix.T

    def hidden(self, ids: np.ndarray) -> torch.Tensor:
        """Of each token of a sequence."""
        states = self.matrix[torch.from_numpy(ids.astype(np.int64))].clone()
        for back, share in ((1, 0.5), (2, 0.25)):
            if len(ids) > back:
                states[back:] += share * self.matrix[torch.from_numpy(ids[:-back].astype(np.int64))]
        return states


WORDS = Words()


class Watched:
    """Shows a drafter the hidden states of what it has not seen, as an engine does, and asks it.

    Args:
        drafter: asked.
        begin: the first position of each sequence that is computed and not found in a cache.
    """

    def __init__(self, drafter: Any, begin: int = 0) -> None:
        self._drafter = drafter
        self._begin = begin
        self._seen = np.full(ROWS, begin)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def admit(self, row: int) -> None:
        self._seen[row] = self._begin
        self._drafter.admit(row)

    def propose(self, batch: DraftBatch) -> Drafts:
        rows, positions, ids, hidden = [], [], [], []
        for row, length in zip(batch.rows.tolist(), batch.lengths.tolist(), strict=True):
            at = np.arange(self._seen[row], length - 1)
            rows.append(np.full(len(at), row))
            positions.append(at)
            ids.append(batch.tokens[row, at].astype(np.int64))
            hidden.append(WORDS.hidden(batch.tokens[row, :length])[at])
            self._seen[row] = max(self._seen[row], length - 1)
        row, position, token = (np.concatenate(column) for column in (rows, positions, ids))
        if len(row):
            self._drafter.observe(Features(row, position, token, torch.cat(hidden)))
        drafts: Drafts = self._drafter.propose(batch)
        return drafts


def network(kind: str) -> Any:
    """An untrained one, the same every time."""
    torch.manual_seed(5)
    if kind == "eagle":
        return recipe.EagleHead(HIDDEN, heads=2, kv_heads=1, head_dim=4, inner=8, window=6)
    medusa = recipe.MedusaHeads(HIDDEN, num_heads=3, inner=16)
    torch.nn.init.normal_(medusa.down)
    return medusa


def resources_of(folder: Path) -> EngineResources:
    return engine_resources(
        max_running=ROWS,
        max_model_len=CONTEXT,
        vocab_size=VOCAB,
        folder=str(folder),
        target=WORDS,
        read_heads=reader(folder),
    )


def reader(model: Path) -> Callable[[str, str], Heads]:
    """What an engine lends."""
    target = DraftTarget(HIDDEN, WORDS.dtype)
    return lambda setting, kind: read_heads(setting, kind, model, target, VOCAB, "cpu")


class HeadsConformance(DrafterConformance):
    """With hidden states."""

    model: Path

    @pytest.fixture(autouse=True)
    def _beside(self, model: Path) -> None:
        self.model = model

    def resources(self) -> EngineResources:
        return resources_of(self.model)


def batch_of(tokens: np.ndarray, lengths: list[int], limits: list[int]) -> DraftBatch:
    n = len(lengths)
    return DraftBatch(
        np.arange(n),
        np.array(lengths),
        np.array(limits),
        tokens,
        np.zeros(n, np.float32),
        np.zeros((n, max(limits))),
    )


def rows_of_tokens() -> np.ndarray:
    return np.random.default_rng(2).integers(0, VOCAB, (ROWS, CONTEXT)).astype(np.int32)


def stored(kind: str) -> Any:
    """The network as float16 keeps it."""
    return network(kind).half().float()
