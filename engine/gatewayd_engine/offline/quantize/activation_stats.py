"""Statistics of matrix inputs, collected while sequences pass through a layer."""

from __future__ import annotations

from collections.abc import Collection

import torch

_MOST_ROWS = 4096
"""Limit of input rows that are sampled for each input group."""


class InputStats:
    """Statistics of one input group: Gram matrix and a sample of rows.

    Attributes:
        count: rows seen so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self._sum: torch.Tensor | None = None
        self._rows: list[torch.Tensor] = []

    def add(self, x: torch.Tensor, step: int) -> None:
        """Add rows ``[n, columns]`` to the Gram matrix, and sample every ``step``-th one."""
        # Summed up in float64: in float32 the error would grow with the number of tokens.
        product = (x.t() @ x).double()
        self._sum = product if self._sum is None else self._sum.add_(product)
        # Every ``step``-th row of all calls together, not of each. Cloned, as a view would hold all
        # of x.
        self._rows.append(x[-self.count % step :: step].clone())
        self.count += len(x)

    @property
    def gram(self) -> torch.Tensor:
        """See ``Site``.

        Raises:
            ValueError: there was no input.
        """
        if self._sum is None:
            raise ValueError("no input was seen")
        return self._sum / self.count

    @property
    def rows(self) -> torch.Tensor:
        """The sampled rows, float32 ``[n, columns]``."""
        return torch.cat(self._rows)


class ActivationStats:
    """Collector of input statistics; an implementation of ``Watch``.

    Args:
        names: of the input groups.
        tokens: number of tokens that will pass through the layer.
        ends: raise ``InputsCollected`` after a group's input, to skip the rest of the layer.
    """

    def __init__(self, names: Collection[str], tokens: int, *, ends: bool = False) -> None:
        self.inputs = {name: InputStats() for name in names}
        self._step = max(1, -(-tokens // _MOST_ROWS))
        self._ends = ends

    def __call__(self, name: str, x: torch.Tensor) -> None:
        """See ``Watch``."""
        if name in self.inputs:
            self.inputs[name].add(x, self._step)
            if self._ends:
                raise InputsCollected


class InputsCollected(Exception):
    """Raised to leave a layer once the required inputs have been collected."""
