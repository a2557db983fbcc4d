"""``logit_bias``: pairs of a token and what is added to its logit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gatewayd_hooks.logits import SamplingView
    from gatewayd_hooks.resources import EngineResources


_NOBODY = torch.zeros(0, dtype=torch.int64)


class Bias:
    """One addition for all pairs of all rows, laid out anew only when the batch changes."""

    def __init__(self) -> None:
        self._device = torch.device("cpu")
        self._pairs: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._lay_out(_NOBODY, _NOBODY)

    def open(self, resources: EngineResources) -> None:
        """Learn the device."""
        self._device = torch.device(resources.device)

    def close(self) -> None:
        """Give the pairs back."""
        self._pairs.clear()
        self._lay_out(_NOBODY, _NOBODY)

    def admit(
        self, row: int, params: SamplingView, prompt: NDArray[np.int32], output: NDArray[np.int32]
    ) -> bool:
        """Wanted by requests that bring pairs."""
        del prompt, output
        if not params.logit_bias:
            return False
        tokens, addends = zip(*params.logit_bias, strict=True)
        self._pairs[row] = (
            torch.tensor(tokens, dtype=torch.int64).to(self._device, non_blocking=True),
            torch.tensor(addends, dtype=torch.float32).to(self._device, non_blocking=True),
        )
        self._lay_out(_NOBODY, _NOBODY)
        return True

    def remove(self, row: int) -> None:
        """Drop the row's pairs."""
        del self._pairs[row]

    def append(self, rows: torch.Tensor, tokens: torch.Tensor) -> None:
        """What was sampled does not matter."""

    def apply(self, logits: torch.Tensor, index: torch.Tensor, rows: torch.Tensor) -> None:
        """Add all pairs at once; pairs of one token add up."""
        if not (torch.equal(index, self._index) and torch.equal(rows, self._rows)):
            self._lay_out(index, rows)
        logits.index_put_(self._where, self._addends, accumulate=True)

    def _lay_out(self, index: torch.Tensor, rows: torch.Tensor) -> None:
        """Put the pairs of these rows one after the other."""
        self._index, self._rows = index.clone(), rows.clone()
        pairs = [self._pairs[row] for row in rows.tolist()]
        counts = torch.tensor([len(tokens) for tokens, _ in pairs], dtype=torch.int64)
        lines = index.repeat_interleave(counts).to(self._device, non_blocking=True)
        self._where = lines, torch.cat([_NOBODY.to(self._device), *(tokens for tokens, _ in pairs)])
        none = torch.zeros(0, dtype=torch.float32, device=self._device)
        self._addends = torch.cat([none, *(addends for _, addends in pairs)])
