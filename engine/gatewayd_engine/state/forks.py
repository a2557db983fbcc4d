"""Parallel sampling: one sequence computes the prompt, its siblings wait and then fork."""

from __future__ import annotations

from gatewayd_engine.state.sequence import Sequence


class ForkGroups:
    """Sequences waiting for a sibling to compute their shared prompt."""

    def __init__(self) -> None:
        self._parents: dict[int, Sequence] = {}

    def __len__(self) -> int:
        """Number of waiting forks."""
        return len(self._parents)

    def find(self, sequence_id: int) -> Sequence | None:
        """Return a waiting fork by id; None if there is none."""
        parent = self._parents.get(sequence_id)
        if parent is None:
            return None
        return next(fork for fork in parent.forks if fork.id == sequence_id)

    def register(self, sequences: list[Sequence]) -> Sequence:
        """Let all but the first sequence wait for the first, which is returned."""
        parent, *parent.forks = sequences
        self._parents.update((fork.id, parent) for fork in parent.forks)
        return parent

    def discard(self, sequence_id: int) -> None:
        """Remove a waiting fork; other ids are ignored."""
        parent = self._parents.pop(sequence_id, None)
        if parent is not None:
            parent.forks = [fork for fork in parent.forks if fork.id != sequence_id]

    def end_group(self, parent: Sequence) -> list[Sequence]:
        """End the group of a parent, and return the forks that waited for it."""
        forks, parent.forks = parent.forks, []
        for fork in forks:
            del self._parents[fork.id]
        return forks
