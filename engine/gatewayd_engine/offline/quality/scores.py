"""Perplexity of a scheme, and divergence of its probabilities from the reference's."""

from __future__ import annotations

import math

import numpy as np
import torch

from gatewayd_engine.offline.quality.job import QualityFigures


class Scores:
    """Accumulator of scores over chunks of logits."""

    def __init__(self) -> None:
        self._tokens = 0
        self._surprise = self._reference_surprise = 0.0
        self._agreed = 0
        self._divergences: list[torch.Tensor] = []

    def add(
        self, logits: torch.Tensor, following: torch.Tensor, reference: torch.Tensor | None
    ) -> None:
        """Add the scores of some tokens.

        Args:
            logits: float32, shape ``[n, vocab]``.
            following: the actual next tokens, int64, shape ``[n]``.
            reference: logits of the reference, of the same shape; None without a reference.
        """
        log_q = logits.log_softmax(-1)
        self._tokens += len(following)
        self._surprise -= _at(log_q, following)
        if reference is None:
            return
        log_p = reference.log_softmax(-1)
        self._reference_surprise -= _at(log_p, following)
        self._agreed += int((log_p.argmax(-1) == log_q.argmax(-1)).sum())
        # KL(P || Q) of each token, with P the reference; sums in float64.
        self._divergences.append((log_p.exp() * (log_p - log_q)).sum(-1, dtype=torch.float64))

    def figures(self) -> QualityFigures:
        """Compute the figures over all tokens, of which there must be at least one.

        Raises:
            ValueError: the logits are not finite, or the divergence is infinite.
        """
        if math.isnan(self._surprise):
            raise ValueError("its logits are not finite")
        perplexity = _perplexity(self._surprise, self._tokens)
        if not self._divergences:
            return QualityFigures(self._tokens, perplexity)
        divergences = torch.cat(self._divergences).numpy()
        if not np.isfinite(divergences).all():
            raise ValueError(
                "its divergence from the reference is infinite: probabilities of 0 or NaN"
            )
        return QualityFigures(
            tokens=self._tokens,
            perplexity=perplexity,
            reference_perplexity=_perplexity(self._reference_surprise, self._tokens),
            agreement=self._agreed / self._tokens,
            kl_mean=float(divergences.mean()),
            kl_p99=float(np.quantile(divergences, 0.99)),
        )


def _at(log_probs: torch.Tensor, ids: torch.Tensor) -> float:
    return float(log_probs.gather(1, ids[:, None]).sum(dtype=torch.float64))


def _perplexity(surprise: float, tokens: int) -> float:
    # Capped, because a broken scheme may exceed the range of floats.
    return math.exp(min(surprise / tokens, 700.0))
