"""Pages that come back into the pool instead of being computed again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.kv.compacted_prefix import CompactedPrefix


@dataclass(frozen=True, slots=True)
class Incoming:
    """Some consecutive pages of a sequence.

    Attributes:
        first: which of its pages the first of them is.
        pages: what each holds, uint8, shape ``[page_bytes]``.
        num_tokens: computed of the sequence once they are there.
        front: with which they begin; its pages are among them. None for those as computed.
    """

    first: int
    pages: Sequence[NDArray[np.uint8]]
    num_tokens: int
    front: CompactedPrefix | None = None
