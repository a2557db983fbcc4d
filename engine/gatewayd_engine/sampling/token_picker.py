"""Token selection from logits by the sampling parameters of batch rows, on a CPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.model.fused.data import Draws
from gatewayd_engine.sampling.random import TOKEN, uniform
from gatewayd_engine.sampling.sampler import distribution, invert, sample
from gatewayd_engine.state.running_batch import RunningBatch


@dataclass(frozen=True, slots=True, eq=False)
class DrawSettings:
    """Sampling parameters of some rows, each of shape ``[n]``."""

    is_greedy: NDArray[np.bool_]
    is_filtered: NDArray[np.bool_]
    seed: NDArray[np.uint64]
    temperature: NDArray[np.float32]
    top_k: NDArray[np.int64]
    top_p: NDArray[np.float32]
    min_p: NDArray[np.float32]

    def without(self, draws: Draws | None) -> DrawSettings:
        """Return settings by which rows whose tokens are drawn already are left alone."""
        return self if draws is None else replace(self, is_greedy=self.is_greedy | draws.is_drawn)


def step_draws(
    settings: DrawSettings,
    positions: NDArray[np.int64],
    is_raw: NDArray[np.bool_] | None = None,
) -> Draws | None:
    """Return the draws that a fused step makes; None if there are none.

    Args:
        settings: of the rows.
        positions: positions of the tokens, shape ``[n]``.
        is_raw: whether logits are used as they are, shape ``[n]``; None for all.
    """
    is_drawn = ~settings.is_greedy
    if is_raw is not None:
        is_drawn &= is_raw
    if not is_drawn.any():
        return None
    return Draws(
        np.where(is_drawn, settings.temperature, np.float32(0)),
        uniform(settings.seed, positions, TOKEN),
        settings.is_filtered,
        settings.top_k,
        settings.top_p,
        settings.min_p,
    )


def draw_into(
    tokens: torch.Tensor,
    best: torch.Tensor,
    logits: torch.Tensor,
    settings: DrawSettings,
    positions: NDArray[np.int64],
    is_bad: NDArray[np.bool_] | None = None,
) -> None:
    """Replace the likeliest tokens of rows that are not greedy by random ones.

    Args:
        tokens: the likeliest tokens, int64, shape ``[n]``.
        best: their logits, shape ``[n]``.
        logits: float32, shape ``[n, vocab]``.
        settings: of the rows.
        positions: positions of the tokens, shape ``[n]``.
        is_bad: see ``TokenPicker.tokens``.
    """
    drawing = np.flatnonzero(~settings.is_greedy)
    if is_bad is not None:
        drawing = drawing[~is_bad[drawing]]
    if len(drawing):
        # Nothing can be drawn from logits that are not finite; their requests fail.
        drawing = drawing[torch.isfinite(best).numpy()[drawing]]
    # Separately: filters sort the tokens, and the same random number selects another token in
    # sorted order.
    is_filtered = settings.is_filtered[drawing]
    for alike, filters in ((drawing[~is_filtered], False), (drawing[is_filtered], True)):
        if not len(alike):
            continue
        index = torch.from_numpy(alike)
        random = torch.from_numpy(uniform(settings.seed[alike], positions[alike], TOKEN))
        columns = (settings.top_k, settings.top_p, settings.min_p) if filters else ()
        temperature = torch.from_numpy(settings.temperature[alike])
        limits = [torch.from_numpy(column[alike]) for column in columns]
        tokens[index] = sample(logits[index], temperature, random, *limits)


class TokenPicker:
    """Greedy or random sampling, by the parameters of each row."""

    def __init__(self, rows: RunningBatch) -> None:
        self._rows = rows

    def tokens(
        self,
        logits: torch.Tensor,
        row: NDArray[np.int64],
        positions: NDArray[np.int64],
        is_bad: NDArray[np.bool_] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Choose a token for each row of logits.

        Args:
            logits: float32, shape ``[n, vocab]``.
            row: batch row of each row of logits, shape ``[n]``.
            positions: positions of the tokens, shape ``[n]``.
            is_bad: mask of logits that may be unsuitable for sampling, whose tokens are
                meaningless. None for none.

        Returns:
            The tokens, int64, and the largest logits, both of shape ``[n]``: NaN if any logit of
            the row is.
        """
        best, tokens = logits.max(-1)
        draw_into(tokens, best, logits, self.settings(row), positions, is_bad)
        return tokens, best

    def settings(self, row: NDArray[np.int64]) -> DrawSettings:
        """Copy the sampling parameters of batch rows, shape ``[n]``."""
        rows = self._rows
        return DrawSettings(
            rows.is_greedy[row],
            rows.is_filtered[row],
            rows.seed[row],
            rows.temperature[row],
            rows.top_k[row],
            rows.top_p[row],
            rows.min_p[row],
        )

    def probabilities(self, logits: torch.Tensor, row: NDArray[np.int64]) -> torch.Tensor:
        """Return the distribution of rows that are not greedy, float64, shape ``[n, vocab]``."""
        return distribution(logits, *self._settings(row))

    def draw(
        self, weights: torch.Tensor, row: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> torch.Tensor:
        """Sample from weights ``[n, vocab]``, as ``tokens`` samples from logits."""
        return invert(weights, torch.from_numpy(uniform(self._rows.seed[row], positions, TOKEN)))

    def _settings(self, row: NDArray[np.int64]) -> tuple[torch.Tensor, ...]:
        """Return the temperature and, if any row has filters, these."""
        rows = self._rows
        temperature = torch.from_numpy(rows.temperature[row])
        if not rows.is_filtered[row].any():
            return (temperature,)
        return (
            temperature,
            torch.from_numpy(rows.top_k[row]),
            torch.from_numpy(rows.top_p[row]),
            torch.from_numpy(rows.min_p[row]),
        )
