"""Merging of branches: ``tips = join(forks)``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from gatewayd_lang.pieces import Expression


class Branch(Protocol):
    """Readable part of a branch; every ``State`` implements it."""

    def __getitem__(self, name: str) -> str:
        """Return a variable; waits for it."""
        ...

    @property
    def branch_text(self) -> str:
        """Text appended since the fork; waits for it."""
        ...


BranchT = TypeVar("BranchT", bound=Branch)


@dataclass(frozen=True)
class Joined(Expression, Generic[BranchT]):
    """Output of branches since their fork. Appending it appends their texts.

    Attributes:
        forks: the branches.
        separator: between their texts.
    """

    forks: tuple[BranchT, ...]
    separator: str

    def __getitem__(self, name: str) -> list[str]:
        """Return a variable of every branch, in order; waits for them.

        Raises:
            LangError: one has failed.
        """
        return [fork[name] for fork in self.forks]

    @property
    def texts(self) -> list[str]:
        """Text appended by each branch; waits for them."""
        return [fork.branch_text for fork in self.forks]


def join(forks: Sequence[BranchT], separator: str = "\n") -> Joined[BranchT]:
    """Merge branches, to read their variables and to append their texts.

    Args:
        forks: of one ``s.fork(n)``.
        separator: between their texts.
    """
    return Joined(tuple(forks), separator)
