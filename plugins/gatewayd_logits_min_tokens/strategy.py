"""``min_tokens``: the tokens that would end a request cannot be sampled before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gatewayd_hooks.logits import SamplingView
    from gatewayd_hooks.resources import EngineResources


class MinTokens:
    """Rows that are still below their minimum, and what would end them."""

    def __init__(self) -> None:
        self._device = torch.device("cpu")
        self._eos: tuple[int, ...] = ()
        self._missing: dict[int, int] = {}
        self._ends: dict[int, torch.Tensor] = {}

    def open(self, resources: EngineResources) -> None:
        """Learn the model's end tokens."""
        self._device = torch.device(resources.device)
        self._eos = resources.eos_token_ids

    def close(self) -> None:
        """Give the rows back."""
        self._missing.clear()
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
        self._ends[row] = torch.tensor(sorted(ends), dtype=torch.int64, device=self._device)
        return True

    def remove(self, row: int) -> None:
        """Drop the row."""
        del self._missing[row]
        del self._ends[row]

    def append(self, rows: torch.Tensor, tokens: torch.Tensor) -> None:
        """One token less is missing."""
        del tokens
        for row in rows.tolist():
            self._missing[row] -= 1

    def apply(self, logits: torch.Tensor, index: torch.Tensor, rows: torch.Tensor) -> None:
        """Make the end tokens impossible, for all rows at once."""
        lines: list[int] = []
        ends: list[torch.Tensor] = []
        for line, row in zip(index.tolist(), rows.tolist(), strict=True):
            if self._missing[row] > 0:
                tokens = self._ends[row]
                lines.extend([line] * len(tokens))
                ends.append(tokens)
        if ends:
            logits[torch.tensor(lines, device=self._device), torch.cat(ends)] = -torch.inf
