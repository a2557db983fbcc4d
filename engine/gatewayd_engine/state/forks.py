"""Answers of one request: one computes the prompt, the others wait for it and then fork."""

from __future__ import annotations

from gatewayd_engine.state.sequence import Sequence


class ForkGroups:
    """Who waits for whose prompt."""

    def __init__(self) -> None:
        self._parents: dict[int, Sequence] = {}

    def __len__(self) -> int:
        """How many wait for a prompt."""
        return len(self._parents)

    def find(self, sequence_id: int) -> Sequence | None:
        """A sequence that waits for a prompt."""
        parent = self._parents.get(sequence_id)
        if parent is None:
            return None
        return next(fork for fork in parent.forks if fork.id == sequence_id)

    def found(self, sequences: list[Sequence]) -> Sequence:
        """Let all but the first wait for the first, which is returned."""
        parent, *parent.forks = sequences
        self._parents.update((fork.id, parent) for fork in parent.forks)
        return parent

    def forget(self, sequence_id: int) -> None:
        """A sequence waits no more, if it did."""
        parent = self._parents.pop(sequence_id, None)
        if parent is not None:
            parent.forks = [fork for fork in parent.forks if fork.id != sequence_id]

    def dissolve(self, parent: Sequence) -> list[Sequence]:
        """Nobody waits for a sequence any more; who did."""
        forks, parent.forks = parent.forks, []
        for fork in forks:
            del self._parents[fork.id]
        return forks
