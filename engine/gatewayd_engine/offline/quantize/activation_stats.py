"""What matrices are multiplied with, added up while sequences pass through a layer."""

from __future__ import annotations

from collections.abc import Collection

import torch

_MOST_ROWS = 4096
"""That are kept as they were."""


class Inputs:
    """What is known of the inputs of one place."""

    def __init__(self) -> None:
        self.count = 0
        self._sum: torch.Tensor | None = None
        self._rows: list[torch.Tensor] = []

    def add(self, x: torch.Tensor, step: int) -> None:
        """Count rows ``[n, columns]``, and keep one of so many."""
        product = (x.t() @ x).double()
        self._sum = product if self._sum is None else self._sum.add_(product)
        self._rows.append(x[-self.count % step :: step].clone())
        self.count += len(x)

    @property
    def gram(self) -> torch.Tensor:
        """See ``Site``.

        Raises:
            ValueError: nothing has come.
        """
        if self._sum is None:
            raise ValueError("no input was seen")
        return self._sum / self.count

    @property
    def rows(self) -> torch.Tensor:
        """Some of them, float32 ``[n, columns]``."""
        return torch.cat(self._rows)


class ActivationStats:
    """Watches places.

    Args:
        names: of the places.
        tokens: that will pass.
        ends: raise ``Enough`` when a place has been seen, for what comes behind it does not matter.
    """

    def __init__(self, names: Collection[str], tokens: int, *, ends: bool = False) -> None:
        self.inputs = {name: Inputs() for name in names}
        self._step = max(1, -(-tokens // _MOST_ROWS))
        self._ends = ends

    def __call__(self, name: str, x: torch.Tensor) -> None:
        """See ``Watch``."""
        if name in self.inputs:
            self.inputs[name].add(x, self._step)
            if self._ends:
                raise Enough


class Enough(Exception):
    """What was wanted of a layer has been seen."""
