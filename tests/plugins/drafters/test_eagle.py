"""EAGLE: the kit, and drafts equal the training recipe's network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gatewayd_draft_eagle.config import EagleConfig
from gatewayd_draft_eagle.strategy import Eagle
from gatewayd_hooks.speculation import Drafts
from tests.plugins.drafters.draft_heads import (
    ROWS,
    WORDS,
    HeadsConformance,
    Watched,
    batch_of,
    resources_of,
    rows_of_tokens,
    stored,
)


class TestEagle(HeadsConformance):
    def make(self) -> Eagle:
        return Eagle(EagleConfig())


class TestEagleAsAChain(HeadsConformance):
    def make(self) -> Eagle:
        return Eagle(EagleConfig(width=1))


class TestShallowEagle(HeadsConformance):
    def make(self) -> Eagle:
        return Eagle(EagleConfig(depth=3))


def eagle_tree(
    ids: np.ndarray, depth: int, width: int, begin: int
) -> list[tuple[tuple[int, ...], float]]:
    """Paths that the recipe's network likes best, everything computed anew for each guess."""
    eagle = stored("eagle")
    features = WORDS.hidden(ids[:-1])
    chain: list[int] = []
    paths, reached = [], 1.0
    for _ in range(depth):
        known = torch.tensor([*ids.tolist(), *chain])
        with torch.no_grad():
            foreseen = eagle(features[None], WORDS.embed(known[1:])[None], torch.tensor([begin]))[
                0, -1:
            ]
        best = WORDS.logits(foreseen)[0].softmax(-1).topk(width)
        for share, token in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            paths.append(((*chain, token), reached * share))
        chain.append(int(best.indices[0]))
        reached *= float(best.values[0])
        features = torch.cat((features, foreseen))
    return sorted(paths, key=lambda path: -path[1])


def paths_of(drafts: Drafts, row: int) -> list[tuple[int, ...]]:
    assert drafts.parents is not None
    paths: list[tuple[int, ...]] = []
    for i in range(int(drafts.counts[row])):
        parent = int(drafts.parents[row, i])
        paths.append((*(paths[parent] if parent >= 0 else ()), int(drafts.tokens[row, i])))
    return paths


@pytest.mark.parametrize("begin", [0, 7])
@pytest.mark.parametrize("width", [1, 3])
def test_eagle_guesses_what_its_layer_says(model: Path, begin: int, width: int) -> None:
    """Though it computes each key once, and rows grow by different steps."""
    drafter = Watched(Eagle(EagleConfig(depth=4, width=width, min_confidence=0)), begin)
    drafter.open(resources_of(model))
    tokens, lengths = rows_of_tokens(), np.array([9, 40, 12, 70])
    for step in range(6):
        limits = [4 * width, 2, 1, 4]
        drafts = drafter.propose(batch_of(tokens, lengths.tolist(), limits))
        assert drafts.counts.tolist() == limits
        for row, length in enumerate(lengths.tolist()):
            wanted = eagle_tree(tokens[row, :length], 4, width, begin)
            assert paths_of(drafts, row) == [path for path, _ in wanted[: limits[row]]]
        lengths += np.array([1, 3, 2, 1 + step])


def test_eagle_looks_no_further_where_it_is_unsure(model: Path) -> None:
    tokens, lengths = rows_of_tokens(), [9, 40, 12, 70]
    batch = batch_of(tokens, lengths, [8, 8, 8, 8])
    deepest = []
    for confidence in (0.0, 0.5, 0.999):
        drafter = Watched(Eagle(EagleConfig(depth=8, width=1, min_confidence=confidence)))
        drafter.open(resources_of(model))
        drafts = drafter.propose(batch)
        deepest.append(int(drafts.counts.max()))
        likely = [
            sum(share >= confidence for _, share in eagle_tree(tokens[row, :length], 8, 1, 0))
            for row, length in enumerate(lengths)
        ]
        # The guess after the last likely one is made; it may be right.
        assert deepest[-1] == min(8, max(likely) + 1)
    assert deepest[0] == 8 > deepest[2]


@pytest.mark.parametrize("depth", [1, 4])
def test_looking_ahead_at_once_guesses_the_same(model: Path, depth: int) -> None:
    """Padded to all rows, whose last pairs are still those of the step before."""
    config, padded = EagleConfig(depth=depth, width=3, min_confidence=0.05), []

    def capture(
        launches: Callable[[int], None], name: str, logits_per_line: int
    ) -> Callable[[int], None]:
        return lambda num: padded.append(num) or launches(ROWS)  # type: ignore[func-returns-value]

    drafters = [Watched(Eagle(config)) for _ in range(2)]
    drafters[0].open(resources_of(model))
    drafters[1].open(replace(resources_of(model), capture=capture))
    tokens = rows_of_tokens()
    steps = [[40, 9, 2, 30], [41, 12], [46, 13, 5], [47, 14, 6, 31]]
    for lengths, limits in zip(steps, ([9, 3, 9, 5], [9, 2], [2, 2, 1], [9, 9, 9, 9]), strict=True):
        batch = batch_of(tokens, lengths, limits)
        mine, theirs = (drafter.propose(batch) for drafter in drafters)
        assert mine.counts.tolist() == theirs.counts.tolist()
        assert mine.counts.max() > 0
        assert mine.tokens.tolist() == theirs.tokens.tolist()
        assert mine.parents is not None
        assert theirs.parents is not None
        assert mine.parents.tolist() == theirs.parents.tolist()
    assert padded == [4, 2, 3, 4]
