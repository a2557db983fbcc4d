"""Drafters with trained heads: the kit, and the same guesses as the recipe's own networks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from gatewayd_draft_eagle.config import EagleConfig
from gatewayd_draft_eagle.strategy import Eagle
from gatewayd_draft_medusa.config import MedusaConfig
from gatewayd_draft_medusa.strategy import Medusa
from gatewayd_draft_medusa.tree import grow
from gatewayd_engine import embedded
from gatewayd_engine.drafting import Target
from gatewayd_engine.heads import read_heads
from gatewayd_engine.recipe import heads as recipe
from gatewayd_engine.recipe.heads_checkpoint import write_heads
from gatewayd_hooks.resources import EngineResources
from gatewayd_hooks.speculation import DraftBatch, Drafts, Features, Heads
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
        return recipe.Eagle(HIDDEN, heads=2, kv_heads=1, head_dim=4, inner=8, window=6)
    medusa = recipe.Medusa(HIDDEN, num_heads=3, inner=16)
    torch.nn.init.normal_(medusa.down)
    return medusa


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the fake model, with heads beside it."""
    folder = tmp_path_factory.mktemp("models") / "words"
    folder.mkdir()
    save_file({"model.embed_tokens.weight": WORDS.matrix}, folder / "model.safetensors")
    for kind in ("medusa", "eagle"):
        beside = folder.with_name(f"words-{kind}")
        write_heads(beside, network(kind), "words", WORDS.matrix, ACCURACY)
    return folder


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
    target = Target(HIDDEN, WORDS.dtype)
    return lambda setting, kind: read_heads(setting, kind, model, target, VOCAB, "cpu")


class HeadsConformance(DrafterConformance):
    """With hidden states."""

    model: Path

    @pytest.fixture(autouse=True)
    def _beside(self, model: Path) -> None:
        self.model = model

    def resources(self) -> EngineResources:
        return resources_of(self.model)


class TestMedusa(HeadsConformance):
    def make(self) -> Medusa:
        return Medusa(MedusaConfig())


class TestSmallMedusa(HeadsConformance):
    def make(self) -> Medusa:
        return Medusa(MedusaConfig(tree_size=3))


class TestEagle(HeadsConformance):
    def make(self) -> Eagle:
        return Eagle(EagleConfig())


class TestEagleAsAChain(HeadsConformance):
    def make(self) -> Eagle:
        return Eagle(EagleConfig(width=1))


class TestShallowEagle(HeadsConformance):
    def make(self) -> Eagle:
        return Eagle(EagleConfig(depth=3))


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


@pytest.mark.parametrize("build", [Medusa, Eagle])
def test_without_a_hidden_state_there_is_no_guess(model: Path, build: Callable[..., Any]) -> None:
    drafter = build(MedusaConfig() if build is Medusa else EagleConfig())
    drafter.open(resources_of(model))
    tokens = rows_of_tokens()
    batch = batch_of(tokens, [8, 8], [4, 4])
    assert drafter.propose(batch).counts.tolist() == [0, 0]
    # Row 0 up to the one that counts, row 1 one less.
    rows, positions = np.array([0, 0, 1]), np.array([5, 6, 5])
    ids = tokens[rows, positions].astype(np.int64)
    drafter.observe(Features(rows, positions, ids, torch.ones(3, HIDDEN)))
    assert drafter.propose(batch).counts.tolist() == [4, 0]
    drafter.admit(0)
    assert drafter.propose(batch).counts.tolist() == [0, 0]


@pytest.mark.parametrize("build", [Medusa, Eagle])
def test_heads_of_another_model_are_refused_in_a_sentence(
    model: Path, tmp_path: Path, build: Callable[..., Any]
) -> None:
    kind = build.__name__.lower()
    config = MedusaConfig if build is Medusa else EagleConfig

    def refusal(folder: Path | str, resources: EngineResources) -> str:
        with pytest.raises(ValueError, match="heads") as error:
            build(config(heads=str(folder))).open(resources)
        assert "\n" not in str(error.value)
        return str(error.value)

    resources = resources_of(model)
    write_heads(tmp_path / "other", network(kind), "x", WORDS.matrix + 0.1, ACCURACY)
    assert "trained for another model" in refusal(tmp_path / "other", resources)
    nano = embedded.folder("nano")
    assert "hidden states of 384" in refusal(nano.with_name(f"nano-{kind}"), resources)
    others = "eagle" if kind == "medusa" else "medusa"
    assert f"not for '{kind}'" in refusal(model.with_name(f"words-{others}"), resources)
    assert "cannot be read" in refusal(broken(tmp_path / "broken"), resources)
    missing = refusal("", engine_resources(target=WORDS, read_heads=reader(tmp_path / "words")))
    assert f"gatewayd_engine.recipe heads --kind {kind}" in missing


def broken(folder: Path) -> Path:
    folder.mkdir()
    (folder / "heads.json").write_text(json.dumps({"kind": "medusa"}))
    (folder / "heads.safetensors").write_bytes(b"\0" * 20)
    return folder


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
