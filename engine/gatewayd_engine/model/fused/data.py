"""Inputs and outputs of a fused step; see ``step``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class StepOutputs:
    """What a step has computed.

    Attributes:
        hidden: after the final norm, shape ``[rows, hidden]``.
        logits: of the wanted rows, float32, shape ``[wanted, vocab]``.
        best: the largest logit of each, NaN if any of them is, shape ``[wanted]``.
        tokens: index of that, or the token that was drawn, int64, shape ``[wanted]``.
        draws: as given to the step; None if all are the likeliest.
    """

    hidden: torch.Tensor
    logits: torch.Tensor
    best: torch.Tensor
    tokens: torch.Tensor
    draws: Draws | None = None


@dataclass(frozen=True, slots=True)
class PagedRows:
    """The rows of a step and the pages that they attend to.

    Attributes:
        positions: of the rotary embedding, shape ``[rows]``.
        slots: of the KV cache, by sequence, shape ``[rows]``.
        lines: sequence of each row, shape ``[rows]``.
        table: pages, shape ``[sequences, pages]``.
        pool: keys and values, shape ``[pages, layers, 2, page_size, kv_heads, head_dim]``.
        visible: whether each row attends to each slot from ``drafts`` on, shape ``[rows, n]``;
            None where drafts are no trees.
        drafts: shape ``[rows]``.
    """

    positions: NDArray[np.int64]
    slots: NDArray[np.int64]
    lines: NDArray[np.int64]
    table: NDArray[np.int64]
    pool: torch.Tensor
    visible: NDArray[np.uint8] | None = None
    drafts: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """Tokens that a step draws at random; all columns have the shape ``[wanted]``.

    Attributes:
        temperature: above 0; 0 for the likeliest token.
        uniform: numbers in [0, 1).
        is_filtered: whether any of the filters applies; see ``sampling.sampler.sample``.
        top_k: 0 for all tokens.
        top_p: 1 for all.
        min_p: 0 for all.
    """

    temperature: NDArray[np.float32]
    uniform: NDArray[np.float64]
    is_filtered: NDArray[np.bool_]
    top_k: NDArray[np.int64]
    top_p: NDArray[np.float32]
    min_p: NDArray[np.float32]

    @property
    def is_drawn(self) -> NDArray[np.bool_]:
        """Whether each token is drawn."""
        return self.temperature > 0

    @property
    def addresses(self) -> tuple[int, ...]:
        """Of the columns, in the order of ``step_layout.Argument``."""
        return (
            self.temperature.ctypes.data,
            self.uniform.ctypes.data,
            self.is_filtered.ctypes.data,
            self.top_k.ctypes.data,
            self.top_p.ctypes.data,
            self.min_p.ctypes.data,
        )
