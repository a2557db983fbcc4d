"""Windows of attention, sliding or fixed: the first position that a token attends to."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

Positions = TypeVar("Positions", int, NDArray[np.int64], torch.Tensor)


def first_visible(position: Positions, window: int, *, chunked: bool) -> Positions:
    """Return the first position that a token attends to; with a sliding window perhaps below 0.

    Args:
        position: of the token, or an array of positions.
        window: above 0; see ``AttentionShape.windows``.
        chunked: see ``AttentionShape``.
    """
    return position // window * window if chunked else position - window + 1
