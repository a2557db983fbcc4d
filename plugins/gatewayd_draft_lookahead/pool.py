"""N-grams by their first token, the latest first, as many as are allowed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class NgramPool:
    """What followed a token lately.

    Args:
        candidates: continuations kept of one token.
        most: continuations kept of all.
    """

    def __init__(self, candidates: int, most: int) -> None:
        self._candidates = candidates
        self._most = most
        self._size = 0
        self._after: OrderedDict[int, OrderedDict[tuple[int, ...], None]] = OrderedDict()

    def add(self, ngram: Sequence[int]) -> None:
        """Remember a token and what came after it."""
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
        while self._size > self._most:
            _, dropped = self._after.popitem(last=False)
            self._size -= len(dropped)

    def after(self, token: int) -> list[tuple[int, ...]]:
        """Continuations of a token, the latest first."""
        return list(reversed(self._after.get(token, ())))
