"""N-gram pool with bounded size, keyed by first token, most recent first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class NgramPool:
    """Recent continuations of tokens.

    Args:
        candidates: maximum of continuations of one token.
        most: maximum of continuations in total.
    """

    def __init__(self, candidates: int, most: int) -> None:
        self._candidates = candidates
        self._most = most
        self._size = 0
        # By first token; both levels are ordered from the least to the most recently added.
        self._after: OrderedDict[int, OrderedDict[tuple[int, ...], None]] = OrderedDict()

    def add(self, ngram: Sequence[int]) -> None:
        """Store a token and its continuation."""
        first, rest = ngram[0], tuple(ngram[1:])
        known = self._after.setdefault(first, OrderedDict())
        if rest in known:
            known.move_to_end(rest)
        else:
            known[rest] = None
            self._size += 1
            if len(known) > self._candidates:
                known.popitem(last=False)
                self._size -= 1
        self._after.move_to_end(first)
        # Over the limit, all continuations of the least recent first token are evicted.
        while self._size > self._most:
            _, dropped = self._after.popitem(last=False)
            self._size -= len(dropped)

    def after(self, token: int) -> list[tuple[int, ...]]:
        """Return the continuations of a token, most recent first."""
        return list(reversed(self._after.get(token, ())))
