"""What keeps the last bit of a number from depending on who else is computed.

A product that rounds its input to few bits makes a large step of a small one: a number between two
codes is rounded either way. In a model that has such products, all that is computed in floats
before them is steady: it gives a row the same numbers, whatever the batch and the threads.
"""

from __future__ import annotations

import torch

_MOST = 1 << 14
"""Numbers that torch 2.13 has one thread compute, whatever the operation. Of more, several threads
take a share each, wherever that cuts a row, and what is left of a vector is computed by other
instructions there, with another last bit."""


class Unsteady:
    """A part whose last bits depend on the batch.

    Attributes:
        is_steady: whether it takes the trouble that they do not.
    """

    __slots__ = ("is_steady",)

    def __init__(self) -> None:
        self.is_steady = False


def pieces(*tensors: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
    """Some rows of each at a time, few enough that one thread computes them.

    Args:
        tensors: of as many rows each; how many numbers a row has is the first one's to say.
    """
    first = tensors[0]
    rows = max(1, _MOST * len(first) // max(1, first.numel()))
    return list(zip(*(torch.split(tensor, rows) for tensor in tensors), strict=True))
