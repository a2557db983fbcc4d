"""``logit_bias``: pairs of a token and the number added to its logit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gatewayd_hooks.logits import SamplingView
    from gatewayd_hooks.resources import EngineResources


_NO_IDS = torch.zeros(0, dtype=torch.int64)


class Bias:
    """One addition for all pairs of all rows; its layout is rebuilt when the batch changes."""

    def __init__(self) -> None:
        self._device = torch.device("cpu")
        self._pairs: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._lay_out(_NO_IDS, _NO_IDS)

    def open(self, resources: EngineResources) -> None:
        """Read the device."""
        self._device = torch.device(resources.device)

    def close(self) -> None:
        """Release the pairs."""
        self._pairs.clear()
        self._lay_out(_NO_IDS, _NO_IDS)

    def admit(
        self, row: int, params: SamplingView, prompt: NDArray[np.int32], output: NDArray[np.int32]
    ) -> bool:
        """Accept requests with pairs."""
        del prompt, output
        if not params.logit_bias:
            return False
        tokens, addends = zip(*params.logit_bias, strict=True)
        self._pairs[row] = (
            torch.tensor(tokens, dtype=torch.int64).to(self._device, non_blocking=True),
            torch.tensor(addends, dtype=torch.float32).to(self._device, non_blocking=True),
        )
        # The present layout may have the pairs of the row's previous sequence.
        self._lay_out(_NO_IDS, _NO_IDS)
        return True

    def remove(self, row: int) -> None:
        """Discard the row's pairs."""
        del self._pairs[row]

    def append(self, rows: torch.Tensor, tokens: torch.Tensor) -> None:
        """Do nothing: sampled tokens do not matter."""

    def apply(self, logits: torch.Tensor, index: torch.Tensor, rows: torch.Tensor) -> None:
        """Add all pairs at once; pairs of one token accumulate."""
        if not (torch.equal(index, self._index) and torch.equal(rows, self._rows)):
            self._lay_out(index, rows)
        logits.index_put_(self._where, self._addends, accumulate=True)

    def _lay_out(self, index: torch.Tensor, rows: torch.Tensor) -> None:
        """Concatenate the pairs of these rows."""
        self._index, self._rows = index.clone(), rows.clone()
        pairs = [self._pairs[row] for row in rows.tolist()]
        counts = torch.tensor([len(tokens) for tokens, _ in pairs], dtype=torch.int64)
        lines = index.repeat_interleave(counts).to(self._device, non_blocking=True)
        # Concatenating no tensors at all is an error.
        self._where = lines, torch.cat([_NO_IDS.to(self._device), *(tokens for tokens, _ in pairs)])
        none = torch.zeros(0, dtype=torch.float32, device=self._device)
        self._addends = torch.cat([none, *(addends for _, addends in pairs)])
