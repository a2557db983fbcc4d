"""Simulated batch rows for drafters."""

from __future__ import annotations

import numpy as np

from gatewayd_hooks.resources import EngineResources
from gatewayd_hooks.speculation import (
    DraftBatch,
    DrafterStrategy,
    Drafts,
    FeatureDrafter,
    Features,
)

ROWS = 4  # few, so that they are reused


class Rows:
    """Simulates sequences in the rows of a batch, with verification of drafts."""

    def __init__(self, drafter: DrafterStrategy, resources: EngineResources, seed: int) -> None:
        self._drafter = drafter
        self._resources = resources
        self._random = np.random.default_rng(seed)
        self.tokens = np.zeros((ROWS, resources.max_model_len), np.int32)
        self.lengths = np.zeros(ROWS, np.int64)
        self._seen = np.zeros(ROWS, np.int64)
        self.answers: list[Drafts] = []
        for row in range(ROWS):
            self.start_sequence(row)

    def start_sequence(self, row: int) -> None:
        """Start a new sequence in a row; tokens of the one before remain after its own."""
        length = int(self._random.integers(1, 24))
        # Few distinct tokens, so that sequences repeat themselves.
        self.tokens[row, :length] = self._random.integers(0, 3, length)
        self.lengths[row] = length
        # Tokens found in a prefix cache are never computed here.
        self._seen[row] = self._random.choice([0, 0, length // 2, length - 1])
        self._drafter.admit(row)

    def step(self) -> None:
        """Request drafts for some rows, accept some of them, and append a token to each."""
        asking = np.flatnonzero(self._random.random(ROWS) < 0.8)
        room = self._resources.max_model_len - self.lengths
        asking = asking[room[asking] > 1]
        if not len(asking):
            return
        limits = np.minimum(self._random.integers(1, 7, len(asking)), room[asking] - 1)
        temperature = self._random.choice(np.array([0.0, 0.7], np.float32), len(asking))
        uniform = self._random.random((len(asking), int(limits.max())))
        lengths = self.lengths[asking]
        batch = DraftBatch(asking, lengths, limits, self.tokens, temperature, uniform)
        if isinstance(self._drafter, FeatureDrafter):
            self._observe(self._drafter)
        drafts = self._propose(batch)
        self.answers.append(drafts)
        check_drafts(batch, drafts, self._resources.vocab_size)
        for i, row in enumerate(asking.tolist()):
            # Of a tree nothing is accepted here: its tokens are no chain.
            kept = 0 if drafts.parents is not None else int(drafts.counts[i])
            kept = int(self._random.integers(0, kept + 1))
            end = int(self.lengths[row]) + kept
            self.tokens[row, end - kept : end] = drafts.tokens[i, :kept]
            self.tokens[row, end] = self._random.integers(0, 3)
            self.lengths[row] = end + 1

    def _observe(self, drafter: FeatureDrafter) -> None:
        """Pass the hidden states computed since the last call, except of the last tokens."""
        import torch

        target = self._resources.target
        assert target is not None, "a drafter that observes needs resources with a target"
        counts = np.maximum(self.lengths - 1 - self._seen, 0)
        rows = np.repeat(np.arange(ROWS), counts)
        if not len(rows):
            return
        positions = np.concatenate(
            [np.arange(seen, seen + n) for seen, n in zip(self._seen, counts, strict=True)]
        )
        ids = self.tokens[rows, positions].astype(np.int64)
        # Any function of the token will do: embeddings have the right size and type.
        hidden = target.embed(torch.from_numpy(ids))
        before = hidden.clone()
        drafter.observe(Features(rows, positions, ids, hidden))
        assert torch.equal(hidden, before), "hidden states must not be modified"
        hidden.fill_(float("nan"))  # the engine reuses the memory
        self._seen += counts

    def _propose(self, batch: DraftBatch) -> Drafts:
        """Call ``propose`` with read-only arrays."""
        for column in batch:
            column.flags.writeable = False
        try:
            return self._drafter.propose(batch)
        finally:
            self.tokens.flags.writeable = True


def check_drafts(batch: DraftBatch, drafts: Drafts, vocab_size: int) -> None:
    """Fail the test when drafts break a rule of ``Drafts``."""
    n, width = drafts.tokens.shape
    assert n == len(batch.rows), "one row of drafts for each row"
    assert drafts.counts.shape == (n,)
    assert (drafts.counts >= 0).all()
    assert (drafts.counts <= batch.limits).all(), "no more drafts than a row can use"
    assert drafts.counts.max(initial=0) <= width
    for i, count in enumerate(drafts.counts.tolist()):
        tokens = drafts.tokens[i, :count]
        assert ((tokens >= 0) & (tokens < vocab_size)).all(), "drafts are tokens of the model"
        if drafts.parents is not None:
            parents = drafts.parents[i, :count].tolist()
            assert all(-1 <= parent < j for j, parent in enumerate(parents)), "parents come first"
            children = list(zip(parents, tokens.tolist(), strict=True))
            assert len(set(children)) == len(children), "no two children are the same token"
    if drafts.probs is None:
        return
    assert drafts.parents is None, "only chains have probabilities"
    assert tuple(drafts.probs.shape) == (n, width, vocab_size)
    for i in np.flatnonzero(batch.temperature > 0).tolist():
        for j in range(int(drafts.counts[i])):
            line = drafts.probs[i, j].cpu().numpy()
            assert (line >= 0).all()
            assert abs(float(line.sum()) - 1) < 1e-3, "probabilities add up to 1"
            assert line[drafts.tokens[i, j]] > 0, "a sampled token must have a probability above 0"
