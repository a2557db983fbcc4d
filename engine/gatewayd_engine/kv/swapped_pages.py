"""Pages copied back into the pool instead of being recomputed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.kv.compacted_prefix import CompactedPrefix


@dataclass(frozen=True, slots=True)
class IncomingPages:
    """Consecutive pages of a sequence outside of the pool.

    Attributes:
        first: index of the first page in the sequence.
        pages: contents of each, uint8, shape ``[page_bytes]``.
        num_tokens: computed tokens of the sequence once they are restored.
        front: compacted prefix with which they begin; its pages are included. None without one.
    """

    first: int
    pages: Sequence[NDArray[np.uint8]]
    num_tokens: int
    front: CompactedPrefix | None = None
