"""Speculative decoding with a draft model (Leviathan et al. 2023, arXiv 2211.17192).

For requests that sample it samples from the draft model's distribution and returns that, so that
rejection sampling accepts what both agree on; for greedy and seeded ones it takes the most likely
token.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_hooks.resources import DraftModel
from gatewayd_hooks.speculation import DraftBatch, Drafts, GuessingModel

if TYPE_CHECKING:
    from gatewayd_draft_model.config import DraftModelConfig
    from gatewayd_hooks.resources import EngineResources


class DraftModelDrafter:
    """Tracks the valid part of each row's KV in the draft model."""

    _model: DraftModel

    def __init__(self, config: DraftModelConfig) -> None:
        self._config = config

    def checkpoint(self, folder: str) -> str:
        """Return the draft model's folder, by default next to the served model's."""
        return self._config.model or f"{folder}-draft"

    def open(self, resources: EngineResources) -> None:
        """Load the draft model.

        Raises:
            ValueError: it does not exist, or has another vocabulary.
        """
        if resources.load_model is None:
            raise ValueError("this engine does not load draft models")
        folder = Path(self.checkpoint(resources.folder))
        if not folder.is_dir():
            raise ValueError(
                f"there is no draft model in {folder}; name its folder in "
                "[drafter.draft_model] model"
            )
        self._model = resources.load_model(str(folder))
        if self._model.vocab_size != resources.vocab_size:
            raise ValueError(
                f"the draft model in {folder} has {self._model.vocab_size} tokens, the served "
                f"model {resources.vocab_size}; both need the same tokenizer"
            )
        # Vocabularies of one size may still have different tokens.
        mine, theirs = _vocabulary(folder), _vocabulary(Path(resources.folder))
        if mine is not None and theirs is not None and mine != theirs:
            raise ValueError(f"the draft model in {folder} has another tokenizer")
        # Tokens computed for each row, of which the first ``_sure`` are known to be its own.
        shape = (resources.max_running, resources.max_model_len)
        self._computed = np.zeros(shape, np.int32)
        self._ends = np.zeros(shape[0], np.int64)
        self._sure = np.zeros(shape[0], np.int64)

    def close(self) -> None:
        """Drop the reference to the draft model, to free its memory."""
        if hasattr(self, "_model"):
            del self._model

    def admit(self, row: int) -> None:
        """Reset this row's state for a new sequence."""
        self._ends[row] = self._sure[row] = 0

    def propose(self, batch: DraftBatch) -> Drafts:
        """Compute new tokens of each row, then draft one token after the other."""
        if isinstance(self._model, GuessingModel):
            return self._draft_greedily(batch, self._model)
        n, width = len(batch.rows), int(batch.limits.max(initial=0))
        counts = np.zeros(n, np.int32)
        # Indices of the rows that are still drafted for; `logits` has a line for each.
        alive, logits = self._catch_up(batch)
        drafts = np.zeros((n, width), np.int32)
        probs = None
        if (batch.temperature > 0).any():
            probs = torch.zeros(n, width, self._model.vocab_size)
        for depth in range(width):
            chosen, is_sure = self._choose(batch, alive, logits, depth, probs)
            alive, chosen = alive[is_sure], chosen[is_sure]
            drafts[alive, depth] = chosen
            counts[alive] += 1
            goes_on = batch.limits[alive] > depth + 1
            alive = alive[goes_on]
            if not len(alive) or depth + 1 == width:
                break
            starts = batch.lengths[alive] + depth
            new = drafts[alive, depth : depth + 1]
            logits = self._extend(batch.rows[alive], starts, np.ones_like(starts), new)
        return Drafts(drafts, counts, None, probs)

    def _draft_greedily(self, batch: DraftBatch, model: GuessingModel) -> Drafts:
        """Draft with a model that generates several tokens itself: greedily, for all rows.

        They are verified as chosen tokens, so that sampled answers keep their distribution.
        """
        n, width = len(batch.rows), int(batch.limits.max(initial=0))
        counts, drafts = np.zeros(n, np.int32), np.zeros((n, width), np.int32)
        # All rows draft the same number of tokens.
        ready, starts, missing = self._prefill_behind(batch, width)
        if len(ready):
            rows, ends = batch.rows[ready], batch.lengths[ready]
            new = self._new(batch, ready, starts, missing)
            self._record_computed(rows, starts, missing, new)
            drafted, confidences = model.guess(rows, starts, missing, new, width)
            drafts[ready] = drafted
            # The model has also computed all drafts but the last; accepted ones are not computed
            # again.
            self._record_computed(rows, ends, np.full(len(rows), width - 1), drafted)
            # Drafts of a row end before the first one below the confidence.
            is_sure = np.cumprod(confidences >= self._config.min_confidence, 1).sum(1)
            counts[ready] = np.minimum(is_sure, batch.limits[ready])
        return Drafts(drafts, counts)

    def _catch_up(self, batch: DraftBatch) -> tuple[NDArray[np.int64], torch.Tensor]:
        """Compute the tokens of each row that the draft model has not computed yet.

        Returns:
            Indices of rows that are ready for drafting, and the logits after their last token.
        """
        ready, starts, missing = self._prefill_behind(batch, batch.limits)
        if not len(ready):
            return ready, torch.empty(0, self._model.vocab_size)
        new = self._new(batch, ready, starts, missing)
        return ready, self._extend(batch.rows[ready], starts, missing, new)

    def _prefill_behind(
        self, batch: DraftBatch, room: NDArray[np.int64] | int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Compute a chunk of rows for which many tokens are missing.

        Args:
            batch: rows that need drafts.
            room: number of tokens for which each must have space.

        Returns:
            Indices of rows with few missing tokens, how many tokens each has computed, and how many
            are missing, all of shape ``[n]``.
        """
        rows, lengths = batch.rows, batch.lengths
        starts = np.array(
            [
                self._num_valid(row, batch.tokens[row], length)
                for row, length in zip(rows.tolist(), lengths.tolist(), strict=True)
            ]
        )
        # Up to here computed tokens equal the sequence's, which never change; behind are rejected
        # drafts.
        self._sure[rows] = self._ends[rows] = starts
        # The draft model's context may be shorter than the engine's.
        fits = np.flatnonzero(lengths + room <= self._model.max_model_len)
        missing, most = lengths - starts, self._config.max_catch_up
        # A long prompt is computed in chunks, without drafts for its row meanwhile: all rows of the
        # step wait for the draft model.
        behind = fits[missing[fits] > most]
        if len(behind):
            some = np.full(len(behind), most)
            self._extend(
                rows[behind], starts[behind], some, self._new(batch, behind, starts[behind], some)
            )
        ready = fits[missing[fits] <= most]
        return ready, starts[ready], missing[ready]

    def _new(
        self,
        batch: DraftBatch,
        lines: NDArray[np.int64],
        starts: NDArray[np.int64],
        counts: NDArray[np.int64],
    ) -> NDArray[np.int32]:
        """Return tokens of rows, for each ``counts`` from ``starts`` on."""
        new = np.zeros((len(lines), int(counts.max())), np.int32)
        for i, row in enumerate(batch.rows[lines].tolist()):
            new[i, : counts[i]] = batch.tokens[row, starts[i] : starts[i] + counts[i]]
        return new

    def _num_valid(self, row: int, tokens: NDArray[np.int32], length: int) -> int:
        """Return the number of computed tokens of a row that are still valid, without its last."""
        # The last token is always computed: its logits choose the first draft.
        sure, end = int(self._sure[row]), int(min(self._ends[row], length - 1))
        sure = min(sure, end)
        differs = np.flatnonzero(self._computed[row, sure:end] != tokens[sure:end])
        return sure + int(differs[0]) if len(differs) else end

    def _extend(
        self,
        rows: NDArray[np.int64],
        starts: NDArray[np.int64],
        counts: NDArray[np.int64],
        new: NDArray[np.int32],
    ) -> torch.Tensor:
        self._record_computed(rows, starts, counts, new)
        return self._model.extend(rows, starts, counts, new)

    def _record_computed(
        self,
        rows: NDArray[np.int64],
        starts: NDArray[np.int64],
        counts: NDArray[np.int64],
        new: NDArray[np.int32],
    ) -> None:
        """Record that these tokens are computed."""
        for i, row in enumerate(rows.tolist()):
            self._computed[row, starts[i] : starts[i] + counts[i]] = new[i, : counts[i]]
        self._ends[rows] = starts + counts

    def _choose(
        self,
        batch: DraftBatch,
        alive: NDArray[np.int64],
        logits: torch.Tensor,
        depth: int,
        probs: torch.Tensor | None,
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Choose a token for each row, and whether the draft model is confident enough.

        The decision must not depend on the sampled token, or samples would not have the returned
        distribution: so it depends on the most likely token.
        """
        if not len(alive):
            return alive, np.zeros(0, np.bool_)
        best = logits.softmax(-1).max(-1)
        chosen = best.indices.numpy()
        is_sure = best.values.numpy() >= self._config.min_confidence
        drawing = np.flatnonzero(batch.temperature[alive] > 0)
        if len(drawing) and probs is not None:
            lines = alive[drawing]
            temperature = torch.from_numpy(batch.temperature[lines]).unsqueeze(-1)
            distribution = torch.softmax(logits[torch.from_numpy(drawing)] / temperature, -1)
            probs[torch.from_numpy(lines), depth] = distribution
            # Inverse transform sampling; scaled by the actual sum, which rounding keeps from being
            # exactly 1.
            cumulative = distribution.double().cumsum(-1)
            target = torch.from_numpy(batch.uniform[lines, depth]).unsqueeze(-1)
            drawn = torch.searchsorted(cumulative, target * cumulative[:, -1:], right=True)
            chosen[drawing] = drawn.squeeze(-1).clamp_(max=distribution.shape[-1] - 1).numpy()
        return chosen, is_sure


def _vocabulary(folder: Path) -> Any:  # noqa: ANN401 - whatever the file holds is compared
    """Return the vocabulary of a checkpoint's tokenizer; None if there is no such file."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        return None
    return json.loads(file.read_text())["model"].get("vocab")
