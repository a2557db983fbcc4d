"""A suffix automaton of one sequence, which grows token by token.

Blumer et al., "The smallest automaton recognizing the subwords of a text" (1985). Its states are
the substrings that end at the same places; the link of the state of all tokens leads to the longest
suffix that has stood before.
"""

from __future__ import annotations

from collections.abc import Iterable


class SuffixAutomaton:
    """All substrings of what was added, in time and memory linear in its length."""

    def __init__(self) -> None:
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._first_end = [0]
        self._last = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def extend(self, tokens: Iterable[int]) -> None:
        """Add tokens at the end."""
        for token in tokens:
            self._add(token)

    def repeated(self) -> tuple[int, int]:
        """The longest suffix that stood before.

        Returns:
            Its length, and how many tokens there were when it ended the first time.
        """
        if not self._size:
            return 0, 0
        state = self._link[self._last]
        return self._length[state], self._first_end[state]

    def _add(self, token: int) -> None:
        self._size += 1
        new = self._state({}, 0, self._size, self._size)
        state = self._last
        self._last = new
        while state != -1 and token not in self._next[state]:
            self._next[state][token] = new
            state = self._link[state]
        if state == -1:
            return
        old = self._next[state][token]
        if self._length[old] == self._length[state] + 1:
            self._link[new] = old
            return
        # Only a part of what ``old`` stands for ends here too: it becomes a state of its own.
        part = self._state(
            dict(self._next[old]), self._link[old], self._length[state] + 1, self._first_end[old]
        )
        self._link[old] = self._link[new] = part
        while state != -1 and self._next[state].get(token) == old:
            self._next[state][token] = part
            state = self._link[state]

    def _state(self, following: dict[int, int], link: int, length: int, first_end: int) -> int:
        self._next.append(following)
        self._link.append(link)
        self._length.append(length)
        self._first_end.append(first_end)
        return len(self._link) - 1
