"""A smaller model guesses, and the larger one checks (Leviathan et al. 2023, arXiv 2211.17192).

For requests that sample it draws from its own distribution and says which, so that the rejection
rule keeps what both agree on; for greedy and seeded ones it takes its likeliest token.
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


class SmallModel:
    """Keeps keys and values of the smaller model for each row, as far as they are right."""

    _model: DraftModel

    def __init__(self, config: DraftModelConfig) -> None:
        self._config = config

    def checkpoint(self, folder: str) -> str:
        """The folder of the smaller model, beside the served one's if no other is named."""
        return self._config.model or f"{folder}-draft"

    def open(self, resources: EngineResources) -> None:
        """Load the smaller model.

        Raises:
            ValueError: it is not there, or has another vocabulary.
        """
        if resources.load_model is None:
            raise ValueError("this engine loads no other models")
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
        mine, theirs = _vocabulary(folder), _vocabulary(Path(resources.folder))
        if mine is not None and theirs is not None and mine != theirs:
            raise ValueError(f"the draft model in {folder} has another tokenizer")
        # What was computed for each row, of which ``_sure`` tokens are known to be its own.
        shape = (resources.max_running, resources.max_model_len)
        self._computed = np.zeros(shape, np.int32)
        self._ends = np.zeros(shape[0], np.int64)
        self._sure = np.zeros(shape[0], np.int64)

    def close(self) -> None:
        """Let go of the smaller model: its memory is for others."""
        if hasattr(self, "_model"):
            del self._model

    def admit(self, row: int) -> None:
        """Nothing of the new sequence is computed."""
        self._ends[row] = self._sure[row] = 0

    def propose(self, batch: DraftBatch) -> Drafts:
        """Read what is new of each row, then guess one token after the other."""
        if isinstance(self._model, GuessingModel):
            return self._guessed(batch, self._model)
        n, width = len(batch.rows), int(batch.limits.max(initial=0))
        counts = np.zeros(n, np.int32)
        alive, logits = self._catch_up(batch)
        guesses = np.zeros((n, width), np.int32)
        probs = None
        if (batch.temperature > 0).any():
            probs = torch.zeros(n, width, self._model.vocab_size)
        for depth in range(width):
            chosen, is_sure = self._choose(batch, alive, logits, depth, probs)
            alive, chosen = alive[is_sure], chosen[is_sure]
            guesses[alive, depth] = chosen
            counts[alive] += 1
            goes_on = batch.limits[alive] > depth + 1
            alive = alive[goes_on]
            if not len(alive) or depth + 1 == width:
                break
            starts = batch.lengths[alive] + depth
            new = guesses[alive, depth : depth + 1]
            logits = self._extend(batch.rows[alive], starts, np.ones_like(starts), new)
        return Drafts(guesses, counts, None, probs)

    def _guessed(self, batch: DraftBatch, model: GuessingModel) -> Drafts:
        """The same with a model that goes on from its own guesses: the likeliest, for all rows.

        They are verified as chosen, so that an answer that is drawn keeps its distribution.
        """
        n, width = len(batch.rows), int(batch.limits.max(initial=0))
        counts, guesses = np.zeros(n, np.int32), np.zeros((n, width), np.int32)
        # All rows take equally many steps.
        ready, starts, missing = self._unread(batch, width)
        if len(ready):
            rows, ends = batch.rows[ready], batch.lengths[ready]
            new = self._new(batch, ready, starts, missing)
            self._note(rows, starts, missing, new)
            guessed, confidences = model.guess(rows, starts, missing, new, width)
            guesses[ready] = guessed
            self._note(rows, ends, np.full(len(rows), width - 1), guessed)
            is_sure = np.cumprod(confidences >= self._config.min_confidence, 1).sum(1)
            counts[ready] = np.minimum(is_sure, batch.limits[ready])
        return Drafts(guesses, counts)

    def _catch_up(self, batch: DraftBatch) -> tuple[NDArray[np.int64], torch.Tensor]:
        """Compute what each row has and the smaller model has not read yet.

        Returns:
            Lines that are ready to be guessed for, and the logits after their last token.
        """
        ready, starts, missing = self._unread(batch, batch.limits)
        if not len(ready):
            return ready, torch.empty(0, self._model.vocab_size)
        new = self._new(batch, ready, starts, missing)
        return ready, self._extend(batch.rows[ready], starts, missing, new)

    def _unread(
        self, batch: DraftBatch, room: NDArray[np.int64] | int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Let rows of which much is missing read a part of that.

        Args:
            batch: who wants guesses.
            room: tokens that each must have room for.

        Returns:
            Lines of which little is missing, how many tokens each has computed, and how many it
            has not, all of shape ``[n]``.
        """
        rows, lengths = batch.rows, batch.lengths
        starts = np.array(
            [
                self._agreeing(row, batch.tokens[row], length)
                for row, length in zip(rows.tolist(), lengths.tolist(), strict=True)
            ]
        )
        self._sure[rows] = self._ends[rows] = starts
        fits = np.flatnonzero(lengths + room <= self._model.max_model_len)
        missing, most = lengths - starts, self._config.max_catch_up
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
        """Tokens that the rows have, of each line ``counts`` from ``starts`` on."""
        new = np.zeros((len(lines), int(counts.max())), np.int32)
        for i, row in enumerate(batch.rows[lines].tolist()):
            new[i, : counts[i]] = batch.tokens[row, starts[i] : starts[i] + counts[i]]
        return new

    def _agreeing(self, row: int, tokens: NDArray[np.int32], length: int) -> int:
        """Tokens of a row that were computed and are still its own; its last is never."""
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
        self._note(rows, starts, counts, new)
        return self._model.extend(rows, starts, counts, new)

    def _note(
        self,
        rows: NDArray[np.int64],
        starts: NDArray[np.int64],
        counts: NDArray[np.int64],
        new: NDArray[np.int32],
    ) -> None:
        """These tokens are computed."""
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
        """A token for each line, and whether the smaller model believes in it.

        Whether it does must not depend on the number drawn, or what is drawn would not have the
        distribution that is said: so the likeliest token is looked at.
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
            said = torch.softmax(logits[torch.from_numpy(drawing)] / temperature, -1)
            probs[torch.from_numpy(lines), depth] = said
            cumulative = said.double().cumsum(-1)
            target = torch.from_numpy(batch.uniform[lines, depth]).unsqueeze(-1)
            drawn = torch.searchsorted(cumulative, target * cumulative[:, -1:], right=True)
            chosen[drawing] = drawn.squeeze(-1).clamp_(max=said.shape[-1] - 1).numpy()
        return chosen, is_sure


def _vocabulary(folder: Path) -> Any:  # noqa: ANN401 - whatever the file holds is compared
    """The tokens of a checkpoint's tokenizer; None if there is no such file."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        return None
    return json.loads(file.read_text())["model"].get("vocab")
