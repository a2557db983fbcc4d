"""Detection of the markers around reasoning in outputs, byte by byte across token boundaries."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.sampling.guides.token_bytes import TokenBytes
from gatewayd_hooks.parsing import Bounds

CLOSED, DEAD = -1, -2
"""States: after the end marker; and invalid, where no reasoning is possible any more.

Other states are the number of bytes of the end marker that have been matched, or, from
``ReasoningBoundary.first`` on, that plus the matched bytes of the begin marker.
"""


class ReasoningBoundary:
    """State machine that finds the end of reasoning; stateless, shared by equal markers.

    The answer after it starts with a new token: a token with the end of the marker and more than
    whitespace after it is never allowed.

    Args:
        bounds: begin and end markers.
        token_bytes: bytes of the model's tokens.

    Attributes:
        first: initial state of an output.
    """

    def __init__(self, bounds: Bounds, token_bytes: TokenBytes) -> None:
        self._begin, self._end = bounds.begin.encode(), bounds.end.encode()
        self._pieces = token_bytes.pieces(bounds)
        self._ends = token_bytes.ends
        self._back = _failures(self._end)
        self.first = len(self._end) if self._begin else 0
        # Only these tokens can change the state: most tokens of reasoning are skipped at once.
        head, last = self._end[:1], self._end[-1:]
        self._moves = frozenset(i for i, piece in enumerate(self._pieces) if head in piece)
        self._closes = [i for i, piece in enumerate(self._pieces) if last in piece]
        self._masks: dict[int, NDArray[np.int32]] = {}

    def is_open(self, place: int) -> bool:
        """Whether the output may still be one without reasoning."""
        return place >= len(self._end)

    def step(self, place: int, token: int) -> int:
        """Return the state after a token; ``DEAD`` if the token is not allowed."""
        if not 0 <= token < len(self._pieces) or token in self._ends:
            return DEAD
        if place == 0 and token not in self._moves:
            return 0
        piece = self._pieces[token]
        if not self.is_open(place):
            return self._walk(place, piece)
        left = self._begin[place - len(self._end) :]
        if not piece or not (left.startswith(piece) or piece.startswith(left)):
            return DEAD
        if len(piece) < len(left):
            return place + len(piece)
        return self._walk(0, piece[len(left) :])

    def _walk(self, place: int, piece: bytes) -> int:
        for at, byte in enumerate(piece):
            # Knuth, Morris and Pratt: no byte of the output is read twice.
            while place and byte != self._end[place]:
                place = self._back[place]
            place += byte == self._end[place]
            if place == len(self._end):
                return DEAD if piece[at + 1 :].strip() else CLOSED
        return place

    def mask(self, place: int) -> NDArray[np.int32]:
        """Return the mask of tokens allowed in a state, without those that skip reasoning."""
        mask = self._masks.get(place)
        if mask is None:
            mask = self._masks[place] = self._mask(place)
        return mask

    def _mask(self, place: int) -> NDArray[np.int32]:
        size = len(self._pieces)
        bits = np.zeros(-(-size // 32) * 32, np.bool_)
        if self.is_open(place):
            left = self._begin[place - len(self._end) :]
            heads = {left[:count] for count in range(1, len(left) + 1)}
            may = (i for i, one in enumerate(self._pieces) if one in heads or one.startswith(left))
            bits[self._going(place, may)] = True
        else:
            bits[:size] = True
            bits[sorted(self._ends)] = False
            # Only tokens with the marker's last byte can complete it, so only these are tested.
            closing = set(self._closes)
            bits[list(closing.difference(self._going(place, closing)))] = False
        return np.packbits(bits, bitorder="little").view(np.int32)

    def _going(self, place: int, tokens: Iterable[int]) -> list[int]:
        return [token for token in tokens if self.step(place, token) != DEAD]


def _failures(mark: bytes) -> list[int]:
    """Compute the failure function of Knuth, Morris and Pratt for a marker.

    ``_failures(b"aab") == [0, 0, 1]``: if "aa" is not followed by "b", "a" is still matched.
    """
    back = [0] * len(mark)
    place = 0
    for at in range(1, len(mark) - 1):
        while place and mark[at] != mark[place]:
            place = back[place]
        place += mark[at] == mark[place]
        back[at + 1] = place
    return back
