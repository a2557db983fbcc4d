"""Token prices in whole millionths of the operator's currency, so that sums are exact."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import NamedTuple

_MILLION = 1_000_000


class Price(NamedTuple):
    """Price of a model, in millionths for a million tokens.

    Attributes:
        input: price of prompt tokens.
        cached: price of prompt tokens found in the prefix cache.
        output: price of generated tokens.
    """

    input: int = 0
    cached: int = 0
    output: int = 0

    def cost(self, prompt: int, cached: int, output: int) -> int:
        """Cost of one request, in millionths, rounded up once.

        ``Price(3_000_000, 0, 0).cost(2, 0, 0) == 6``

        Args:
            prompt: prompt tokens, cached ones included.
            cached: cached prompt tokens.
            output: generated tokens.
        """
        whole = (prompt - cached) * self.input + cached * self.cached + output * self.output
        # Rounded up with integers: floor division of the negative.
        return -(-whole // _MILLION)

    def most(self, prompt: int, output: int) -> int:
        """Maximum cost of a request, however much of its prompt is cached."""
        return -(-(prompt * max(self.input, self.cached) + output * self.output) // _MILLION)

    def num_affordable(self, micros: int, prompt: int, tokens: int) -> int:
        """Number of tokens, prompt and output, up to ``tokens``, that an amount pays for.

        Less than the prompt if the prompt alone costs too much.
        """
        left = micros * _MILLION - prompt * max(self.input, self.cached)
        if left < 0:
            return prompt - 1
        return tokens if not self.output else min(tokens, prompt + left // self.output)


FREE = Price()
OTHERS = "*"
"""Wildcard model: its price applies to models without their own."""


class Prices(NamedTuple):
    """Prices of all models.

    Attributes:
        known: trusted prices by model.
        doubted: models whose own price was changed or removed from outside: they have none, not
            even the wildcard's, which may be lower.
    """

    known: Mapping[str, Price] = {}
    doubted: Set[str] = frozenset()

    def of(self, model: str) -> Price | None:
        """The price of a model; None for none."""
        # Before the wildcard, which may be cheaper than the price that was edited.
        if model in self.doubted:
            return None
        return self.known.get(model) or self.known.get(OTHERS)
