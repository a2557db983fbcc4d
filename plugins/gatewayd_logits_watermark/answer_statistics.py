"""Detection statistics of one answer, token by token, and the strength needed for detection.

The paper adds the same to every green logit. Where a model is certain of each token that changes
nothing, and the answer carries no watermark; an addend that changes even those degrades every
answer that would have carried it anyway. So an answer that falls behind what a detector needs gets
more, as much as it lacks, and one that has enough gets no more than ``delta``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from struct import Struct

from gatewayd_logits_watermark.green import Hasher, threshold

GOAL_Z = 6.0
"""z-score to reach at ``GOAL_TOKENS``: two more than needed for detection, as a margin."""

GOAL_TOKENS = 200
FREE_TOKENS = 32
"""Shorter answers are never marked more strongly: they are too short for detection in any case."""

EAGERNESS = 2.0
"""Added to a logit for each missing green token."""

_DIGEST = Struct("<ii")
_MASK = 2**32 - 1


class AnswerStatistics:
    """Detection statistics of an answer so far.

    Args:
        hasher: of the tenant's key.
        context: preceding tokens, as many as determine a list; -1 where there are none.
        gamma: fraction of the vocabulary that is green.
        numbers: of the vocabulary, see ``green.numbers_of``.

    Attributes:
        digest: two int32, which determine the list of the next token.
    """

    def __init__(
        self, hasher: Hasher, context: Sequence[int], gamma: float, numbers: Sequence[int]
    ) -> None:
        self._hasher = hasher
        self._width = len(context)
        self._context = b"".join(_bytes(token) for token in context)
        self._gamma = gamma
        self._green = threshold(gamma) + 2**31
        self._spread = GOAL_Z * math.sqrt(gamma * (1 - gamma))
        self._numbers = numbers
        self._num_tokens = 0
        self._seen_after: dict[bytes, list[int]] = {}
        self._surplus = 0.0
        self.digest = hasher(self._context)

    def advance(self, token: int) -> None:
        """Add a generated token."""
        # As in ``detect``: what a detector does not score must not count here.
        if self._num_tokens >= self._width and token not in self.seen:
            # A new list, because the processor still refers to the one returned before.
            self._seen_after[self.digest] = [*self.seen, token]
            multiplier, addend = _DIGEST.unpack(self.digest)
            # The signed comparison of ``is_green`` in Python's integers, with both sides shifted by
            # 2**31.
            value = (multiplier | 1) * self._numbers[token] + addend + 2**31
            self._surplus += (value & _MASK < self._green) - self._gamma
        self._num_tokens += 1
        self._context = self._context[8:] + _bytes(token)
        self.digest = self._hasher(self._context)

    @property
    def seen(self) -> Sequence[int]:
        """Tokens that came earlier after the same context: repeated ones do not count."""
        return self._seen_after.get(self.digest, ())

    @property
    def missing(self) -> float:
        """Number of green tokens by which the answer is behind, at least 0."""
        count = self._num_tokens
        share = min(1.0, (count - FREE_TOKENS) / (GOAL_TOKENS - FREE_TOKENS))
        needed = share * self._spread * math.sqrt(max(count, GOAL_TOKENS))
        return max(0.0, needed - self._surplus) if share > 0 else 0.0


def _bytes(token: int) -> bytes:
    return token.to_bytes(8, "little", signed=True)
