"""Branches brought together again: ``tips = join(forks)``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from gatewayd_lang.pieces import Expression


class Branch(Protocol):
    """What is read of a branch; every ``State`` has it."""

    def __getitem__(self, name: str) -> str:
        """A variable; waits for it."""
        ...

    @property
    def branch_text(self) -> str:
        """What it has appended since it was forked; waits for it."""
        ...


BranchT = TypeVar("BranchT", bound=Branch)


@dataclass(frozen=True)
class Joined(Expression, Generic[BranchT]):
    """What branches have said since they were forked. Appending it appends their texts.

    Attributes:
        forks: the branches.
        separator: between their texts.
    """

    forks: tuple[BranchT, ...]
    separator: str

    def __getitem__(self, name: str) -> list[str]:
        """A variable of every branch, in order; waits for them.

        Raises:
            LangError: one has failed.
        """
        return [fork[name] for fork in self.forks]

    @property
    def texts(self) -> list[str]:
        """What each has appended; waits for them."""
        return [fork.branch_text for fork in self.forks]


def join(forks: Sequence[BranchT], separator: str = "\n") -> Joined[BranchT]:
    """Bring branches together, to read their variables and to append what they have said.

    Args:
        forks: of one ``s.fork(n)``.
        separator: between their texts.
    """
    return Joined(tuple(forks), separator)
