"""Medusa: the kit, and drafts equal the training recipe's network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gatewayd_draft_medusa.config import MedusaConfig
from gatewayd_draft_medusa.strategy import Medusa
from gatewayd_draft_medusa.tree import grow
from tests.plugins.drafters.draft_heads import (
    ACCURACY,
    WORDS,
    HeadsConformance,
    Watched,
    batch_of,
    resources_of,
    rows_of_tokens,
    stored,
)


class TestMedusa(HeadsConformance):
    def make(self) -> Medusa:
        return Medusa(MedusaConfig())


class TestSmallMedusa(HeadsConformance):
    def make(self) -> Medusa:
        return Medusa(MedusaConfig(tree_size=3))


def test_medusa_guesses_what_its_heads_say(model: Path) -> None:
    drafter = Watched(Medusa(MedusaConfig()))
    drafter.open(resources_of(model))
    tokens, lengths = rows_of_tokens(), [5, 40, 2, 77]
    drafts = drafter.propose(batch_of(tokens, lengths, [9, 4, 9, 1]))
    tree = grow(ACCURACY, 9)
    assert drafts.counts.tolist() == [9, 4, 9, 1]
    for row, length in enumerate(lengths):
        hidden = WORDS.hidden(tokens[row, : length - 1])[-1:]
        with torch.no_grad():
            best = WORDS.logits(stored("medusa")(hidden)).topk(3).indices[:, 0]
        wanted = best[torch.from_numpy(tree.heads), torch.from_numpy(tree.ranks)]
        assert drafts.tokens[row].tolist() == wanted.tolist()
        assert drafts.parents is not None
        assert drafts.parents[row].tolist() == tree.parents.tolist()


def test_a_tree_takes_the_likeliest_paths() -> None:
    """Against all paths there are, sorted."""
    paths = {
        (a, *rest): np.prod([ACCURACY[i][r] for i, r in enumerate((a, *rest))])
        for a in range(3)
        for rest in [(), *((b,) for b in range(3)), *((b, c) for b in range(3) for c in range(3))]
    }
    for size in (1, 2, 5, 9, 20, len(paths), 100):
        tree = grow(ACCURACY, size)
        grown: list[tuple[int, ...]] = []
        for parent, head, rank in zip(*(c.tolist() for c in tree), strict=True):
            grown.append((*(grown[parent] if parent >= 0 else ()), rank))
            assert len(grown[-1]) == head + 1
        assert len(set(grown)) == len(grown) == min(size, len(paths))
        best = sorted(paths.values(), reverse=True)[: len(grown)]
        assert [paths[path] for path in grown] == pytest.approx(best)
