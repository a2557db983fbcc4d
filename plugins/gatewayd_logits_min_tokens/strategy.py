"""``min_tokens``: the tokens that would end a request cannot be sampled before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gatewayd_hooks.logits import SamplingView
    from gatewayd_hooks.resources import EngineResources


_NOBODY = torch.zeros(0, dtype=torch.int64)


class MinTokens:
    """Rows that are still below their minimum, and what would end them.

    What a step sets is laid out anew only when the batch changes or a row has reached its
    minimum; when all have, nothing is left to do.
    """

    def __init__(self) -> None:
        self._device = torch.device("cpu")
        self._eos: tuple[int, ...] = ()
        self._missing = _NOBODY
        self._impossible = torch.tensor(-torch.inf)
        self._ends: dict[int, torch.Tensor] = {}
        self._lay_out(_NOBODY, _NOBODY)

    def open(self, resources: EngineResources) -> None:
        """Learn the model's end tokens; make a column of tokens that each row lacks."""
        self._device = torch.device(resources.device)
        # Here, for a number that is brought to a GPU waits for all that was launched before.
        self._impossible = torch.tensor(-torch.inf, device=self._device)
        self._eos = resources.eos_token_ids
        self._missing = torch.zeros(resources.max_running, dtype=torch.int64)

    def close(self) -> None:
        """Give the rows back."""
        self._ends.clear()

    def admit(
        self, row: int, params: SamplingView, prompt: NDArray[np.int32], output: NDArray[np.int32]
    ) -> bool:
        """Wanted while tokens are missing and something could end the request before.

        With ``ignore_eos`` an end token of the model ends nothing and may be sampled.
        """
        del prompt
        missing = params.min_tokens - len(output)
        ends = {*params.stop_token_ids, *(() if params.ignore_eos else self._eos)}
        if missing <= 0 or not ends:
            return False
        self._missing[row] = missing
        self._ends[row] = torch.tensor(sorted(ends), dtype=torch.int64).to(
            self._device, non_blocking=True
        )
        self._lay_out(_NOBODY, _NOBODY)
        return True

    def remove(self, row: int) -> None:
        """Drop the row."""
        self._ends.pop(row, None)

    def append(self, rows: torch.Tensor, tokens: torch.Tensor) -> None:
        """One token less is missing."""
        del tokens
        if not self._ends:
            return
        rows = rows.cpu()
        missing = self._missing[rows] - 1
        self._missing[rows] = missing
        if not bool(missing.all()):
            for row in rows[missing == 0].tolist():
                del self._ends[row]
            self._lay_out(_NOBODY, _NOBODY)

    def apply(self, logits: torch.Tensor, index: torch.Tensor, rows: torch.Tensor) -> None:
        """Make the end tokens impossible, for all rows at once."""
        if not self._ends:
            return
        if not (torch.equal(index, self._index) and torch.equal(rows, self._rows)):
            self._lay_out(index, rows)
        logits.index_put_(self._where, self._impossible)

    def _lay_out(self, index: torch.Tensor, rows: torch.Tensor) -> None:
        """Put the end tokens of these rows one after the other."""
        self._index, self._rows = index.clone(), rows.clone()
        none = _NOBODY.to(self._device)
        ends = [self._ends.get(row, none) for row in rows.tolist()]
        counts = torch.tensor([len(tokens) for tokens in ends], dtype=torch.int64)
        lines = index.repeat_interleave(counts).to(self._device, non_blocking=True)
        self._where = lines, torch.cat([none, *ends])
