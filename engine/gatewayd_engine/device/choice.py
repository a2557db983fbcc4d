"""Chooses tokens for positions with drafts as the device chooses all others."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.device.transfers import upload
from gatewayd_engine.kernels.base import Kernels, SamplingColumns
from gatewayd_engine.rows import Rows
from gatewayd_engine.sampling.choice import Choice


class KeyedChoice(Choice):
    """``Choice`` on logits of a device, by its sampler: drafts change no answer.

    Args:
        rows: of the batch.
        kernels: of the device.
        sampling: the rows' parameters there.
    """

    def __init__(self, rows: Rows, kernels: Kernels, sampling: SamplingColumns) -> None:
        super().__init__(rows)
        self._kernels = kernels
        self._sampling = sampling

    def tokens(
        self,
        logits: torch.Tensor,
        row: NDArray[np.int64],
        positions: NDArray[np.int64],
        is_bad: NDArray[np.bool_] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See ``Choice``; the answers are on the host, and the logits stay where they are."""
        both = np.stack([row, positions]).astype(np.int32)
        rows, at = upload(both, logits.device)
        tokens, best = self._kernels.sample(logits, rows, at, self._sampling)
        return tokens.cpu().long(), best.cpu()
