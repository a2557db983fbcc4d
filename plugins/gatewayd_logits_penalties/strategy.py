"""Frequency, presence and repetition penalties, for all rows at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from gatewayd_hooks.resources import PenaltyColumns
from gatewayd_logits_penalties.table import RowTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gatewayd_hooks.logits import SamplingView
    from gatewayd_hooks.resources import EngineResources


class Penalties:
    """Token history and penalties of each row.

    The repetition penalty considers prompt and output: it divides positive logits and multiplies
    negative ones. Then the frequency (per occurrence) and presence (once) penalties are subtracted,
    which consider the output alone.
    """

    def open(self, resources: EngineResources) -> None:
        """Allocate the columns; the tables grow with their use."""
        rows, vocab = resources.max_running, resources.vocab_size
        device = torch.device(resources.device)
        self._device = device
        self._penalise = resources.penalise
        self._repetition = torch.ones(rows, dtype=torch.float32, device=device)
        self._frequency = torch.zeros(rows, dtype=torch.float32, device=device)
        self._presence = torch.zeros(rows, dtype=torch.float32, device=device)
        self._seen = RowTable(rows, vocab, torch.bool, device)
        self._counts = RowTable(rows, vocab, torch.int32, device)

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def admit(
        self, row: int, params: SamplingView, prompt: NDArray[np.int32], output: NDArray[np.int32]
    ) -> bool:
        """Accept requests with a penalty that is not neutral."""
        repeats = params.repetition_penalty != 1.0
        counts = params.frequency_penalty != 0.0 or params.presence_penalty != 0.0
        if repeats:
            self._repetition[row].fill_(params.repetition_penalty)
            seen = np.concatenate([prompt, output])
            self._seen.add(row).index_fill_(0, self._tensor(seen), True)
        if counts:
            self._frequency[row].fill_(params.frequency_penalty)
            self._presence[row].fill_(params.presence_penalty)
            tokens = self._tensor(output)
            ones = torch.ones_like(tokens, dtype=torch.int32)
            self._counts.add(row).index_add_(0, tokens, ones)
        return repeats or counts

    def _tensor(self, tokens: NDArray[np.int32]) -> torch.Tensor:
        return torch.from_numpy(tokens.astype(np.int64)).to(self._device, non_blocking=True)

    def remove(self, row: int) -> None:
        """Release the row's table lines."""
        self._seen.release(row)
        self._counts.release(row)

    def _columns(self) -> PenaltyColumns:
        return PenaltyColumns(
            seen=self._seen.data,
            seen_line=self._seen.line_of,
            counts=self._counts.data,
            count_line=self._counts.line_of,
            repetition=self._repetition,
            frequency=self._frequency,
            presence=self._presence,
        )

    def append(self, rows: torch.Tensor, tokens: torch.Tensor) -> None:
        """Record sampled tokens."""
        tokens = tokens.to(self._device)
        which, lines = self._seen.find(rows)
        # Filled: a number that is assigned by index is copied from the host, and waited for.
        cells = lines * self._seen.data.shape[1] + tokens[which]
        self._seen.data.view(-1).index_fill_(0, cells, True)
        which, lines = self._counts.find(rows)
        # Rows are distinct, so cells are, too.
        self._counts.data[lines, tokens[which]] += 1

    def apply(self, logits: torch.Tensor, index: torch.Tensor, rows: torch.Tensor) -> None:
        """Penalize, in place."""
        # On a GPU, one launch instead of a dozen operations.
        if self._penalise is not None:
            self._penalise(logits, index, rows, self._columns())
            return
        which, lines = self._seen.find(rows)
        if len(which):
            factor = self._repetition[rows[which]].unsqueeze(1)
            before = logits[index[which]]
            after = torch.where(before > 0, before / factor, before * factor)
            logits[index[which]] = torch.where(self._seen.data[lines], after, before)
        which, lines = self._counts.find(rows)
        if len(which):
            counts = self._counts.data[lines]
            frequency = self._frequency[rows[which]].unsqueeze(1)
            presence = self._presence[rows[which]].unsqueeze(1)
            logits[index[which]] -= counts * frequency + (counts > 0) * presence
