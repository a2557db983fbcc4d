"""What tokens cost, in whole millionths of the operator's currency: sums of them are exact."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import NamedTuple

_MILLION = 1_000_000


class Price(NamedTuple):
    """Of a model: millionths for a million tokens.

    Attributes:
        input: of a prompt.
        cached: of a prompt, found in the prefix cache.
        output: generated.
    """

    input: int = 0
    cached: int = 0
    output: int = 0

    def cost(self, prompt: int, cached: int, output: int) -> int:
        """Of one request, in millionths, rounded up once.

        ``Price(3_000_000, 0, 0).cost(2, 0, 0) == 6``

        Args:
            prompt: tokens of the prompts, those that were cached too.
            cached: of those.
            output: tokens generated.
        """
        whole = (prompt - cached) * self.input + cached * self.cached + output * self.output
        return -(-whole // _MILLION)

    def most(self, prompt: int, output: int) -> int:
        """What a request can cost, whatever of its prompt is cached."""
        return -(-(prompt * max(self.input, self.cached) + output * self.output) // _MILLION)

    def affords(self, micros: int, prompt: int, tokens: int) -> int:
        """Most tokens, prompt and output together, of at most ``tokens``, for so much money.

        Less than the prompt if that alone is too dear.
        """
        left = micros * _MILLION - prompt * max(self.input, self.cached)
        if left < 0:
            return prompt - 1
        return tokens if not self.output else min(tokens, prompt + left // self.output)


FREE = Price()
OTHERS = "*"
"""The model whose price others have that have none of their own."""


class Prices(NamedTuple):
    """Of all models.

    Attributes:
        known: those that are trusted, by model.
        doubted: models whose own price somebody has changed or taken out: they have none, also
            where others have one. That may be cheaper.
    """

    known: Mapping[str, Price] = {}
    doubted: Set[str] = frozenset()

    def of(self, model: str) -> Price | None:
        """Of a model; None for none."""
        if model in self.doubted:
            return None
        return self.known.get(model) or self.known.get(OTHERS)
