"""``min_tokens``: end tokens cannot be sampled before that many tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gatewayd_hooks.logits import SamplingView
    from gatewayd_hooks.resources import EngineResources


_NO_IDS = torch.zeros(0, dtype=torch.int64)


class MinTokens:
    """Masks the end tokens of rows below their minimum.

    The layout is rebuilt only when the batch changes or a row has reached its minimum; when all
    have, there is nothing to do.
    """

    def __init__(self) -> None:
        self._device = torch.device("cpu")
        self._eos: tuple[int, ...] = ()
        self._missing = _NO_IDS
        self._impossible = torch.tensor(-torch.inf)
        self._ends: dict[int, torch.Tensor] = {}
        self._lay_out(_NO_IDS, _NO_IDS)

    def open(self, resources: EngineResources) -> None:
        """Read the model's end tokens, and allocate the column of missing tokens per row."""
        self._device = torch.device(resources.device)
        # Here, because copying a scalar to a GPU waits for all earlier launches.
        self._impossible = torch.tensor(-torch.inf, device=self._device)
        self._eos = resources.eos_token_ids
        self._missing = torch.zeros(resources.max_running, dtype=torch.int64)

    def close(self) -> None:
        """Release the rows."""
        self._ends.clear()

    def admit(
        self, row: int, params: SamplingView, prompt: NDArray[np.int32], output: NDArray[np.int32]
    ) -> bool:
        """Accept requests below their minimum that some token could end.

        With ``ignore_eos`` the model's end tokens end nothing and may be sampled.
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
        # The present layout may have the end tokens of the row's previous sequence.
        self._lay_out(_NO_IDS, _NO_IDS)
        return True

    def remove(self, row: int) -> None:
        """Discard the row."""
        # Rows that have reached their minimum were removed by `append`.
        self._ends.pop(row, None)

    def append(self, rows: torch.Tensor, tokens: torch.Tensor) -> None:
        """Decrement the number of missing tokens."""
        del tokens
        if not self._ends:
            return
        rows = rows.cpu()
        missing = self._missing[rows] - 1
        self._missing[rows] = missing
        # A row reaches 0 once; beyond its minimum its number is negative.
        if not bool(missing.all()):
            for row in rows[missing == 0].tolist():
                del self._ends[row]
            self._lay_out(_NO_IDS, _NO_IDS)

    def apply(self, logits: torch.Tensor, index: torch.Tensor, rows: torch.Tensor) -> None:
        """Mask the end tokens of all rows at once."""
        if not self._ends:
            return
        if not (torch.equal(index, self._index) and torch.equal(rows, self._rows)):
            self._lay_out(index, rows)
        logits.index_put_(self._where, self._impossible)

    def _lay_out(self, index: torch.Tensor, rows: torch.Tensor) -> None:
        """Concatenate the end tokens of these rows."""
        self._index, self._rows = index.clone(), rows.clone()
        none = _NO_IDS.to(self._device)
        ends = [self._ends.get(row, none) for row in rows.tolist()]
        counts = torch.tensor([len(tokens) for tokens in ends], dtype=torch.int64)
        lines = index.repeat_interleave(counts).to(self._device, non_blocking=True)
        self._where = lines, torch.cat([none, *ends])
