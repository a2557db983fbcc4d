"""Detects the watermark in tokens, with the key and without the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gatewayd_hooks.detection import Detection
from gatewayd_logits_watermark.green import Hasher, is_green, split
from gatewayd_logits_watermark.keys import keys_of, names_of

if TYPE_CHECKING:
    from gatewayd_logits_watermark.config import WatermarkConfig

P_MARKED = 1e-4
"""Maximum probability of a false positive."""

MIN_UNMARKED = 100
"""Minimum number of scored tokens for a negative verdict."""


class MarkDetector:
    """Detects whether a tenant's text is watermarked.

    Args:
        config: of the watermark; texts marked with another gamma or context look unmarked.
    """

    def __init__(self, config: WatermarkConfig) -> None:
        self._config = config
        self._key_of = keys_of(config)

    def detect(self, tokens: Sequence[int], tenant: str) -> Detection:
        """Test for a tenant's watermark, then for those of earlier versions."""
        name, *earlier = names_of(tenant)
        found = self._detect(tokens, name)
        for name in () if found.is_marked else earlier:
            if (other := self._detect(tokens, name)).is_marked:
                return other
        return found

    def _detect(self, tokens: Sequence[int], name: str) -> Detection:
        config = self._config
        return detect(tokens, self._key_of(name), config.gamma, config.context)


def detect(tokens: Sequence[int], key: bytes, gamma: float, context: int) -> Detection:
    """Count green tokens, and compute the probability of that count by chance.

    A token is scored once for each context it follows: repeated text repeats its outcome, and would
    look marked or not by a single random event (Kirchenbauer et al. 2023, section 4.1). The first
    ``context`` tokens are not scored, because what precedes them is unknown.

    Args:
        tokens: ids, of an answer or of any text.
        key: of the tenant.
        gamma: fraction of the vocabulary that is green.
        context: number of tokens that determine a list.
    """
    ids = np.asarray(tokens, np.int64)
    if len(ids) <= context:
        return Detection(0, 0, 0.0, 1.0, None)
    pairs = np.unique(np.lib.stride_tricks.sliding_window_view(ids, context + 1), axis=0)
    before, lists = np.unique(pairs[:, :-1], axis=0, return_inverse=True)
    hasher = Hasher(key)
    # Ids of eight bytes, as ``AnswerStatistics`` hashes them.
    multipliers, addends = split(b"".join(hasher(one.tobytes()) for one in before))
    lists = lists.reshape(-1)
    green = is_green(multipliers[lists], addends[lists], pairs[:, -1], gamma)
    return judge(len(pairs), int(green.sum()), gamma)


def judge(num_scored: int, num_green: int, gamma: float) -> Detection:
    """Return the statistics of a count."""
    if not num_scored:
        return Detection(0, 0, 0.0, 1.0, None)
    spread = math.sqrt(num_scored * gamma * (1 - gamma))
    z = (num_green - gamma * num_scored) / spread
    p_value = _tail(num_scored, num_green, gamma)
    is_marked = True if p_value <= P_MARKED else None if num_scored < MIN_UNMARKED else False
    return Detection(num_scored, num_green, z, p_value, is_marked)


def _tail(trials: int, least: int, chance: float) -> float:
    """Return the probability of at least that many successes.

    Exact, as z is not normal in short texts.
    """
    if least <= 0:
        return 1.0
    successes = np.arange(least, trials + 1)
    # Each binomial term is the previous one times a ratio.
    ratios = (trials - successes[:-1]) / (successes[1:]) * (chance / (1 - chance))
    first = (
        math.lgamma(trials + 1)
        - math.lgamma(least + 1)
        - math.lgamma(trials - least + 1)
        + least * math.log(chance)
        + (trials - least) * math.log1p(-chance)
    )
    logs = first + np.concatenate([[0.0], np.cumsum(np.log(ratios))])
    return min(1.0, float(np.exp(logs).sum()))
