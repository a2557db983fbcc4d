"""Chooses tokens on the host as the device would, so that drafts change no answer."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.kernels.base import SamplingColumns
from gatewayd_engine.kernels.twins import TorchKernels
from gatewayd_engine.sampling.choice import Choice


class KeyedChoice(Choice):
    """``Choice`` whose noise depends on seed, position and token, as that of ``Kernels.sample``."""

    def tokens(
        self,
        logits: torch.Tensor,
        row: NDArray[np.int64],
        positions: NDArray[np.int64],
        is_bad: NDArray[np.bool_] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See ``Choice``."""
        rows = self._rows
        columns = SamplingColumns(
            temperature=torch.from_numpy(rows.temperature[row]),
            top_k=torch.from_numpy(rows.top_k[row].astype(np.int32)),
            top_p=torch.from_numpy(rows.top_p[row]),
            min_p=torch.from_numpy(rows.min_p[row]),
            seed=torch.from_numpy(rows.seed[row].view(np.int64)),
        )
        index = torch.arange(len(row), dtype=torch.int32)
        at = torch.from_numpy(positions.astype(np.int64))
        tokens, best = TorchKernels().sample(logits, index, at, columns)
        return tokens.long(), best
