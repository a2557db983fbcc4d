"""Branches brought together again: ``tips = join(forks)``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gatewayd_lang.pieces import Expression

if TYPE_CHECKING:
    from gatewayd_lang.state import State


@dataclass(frozen=True)
class Joined(Expression):
    """What branches have said since they were forked. Appending it appends their texts.

    Attributes:
        forks: the branches.
        separator: between their texts.
    """

    forks: tuple[State, ...]
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


def join(forks: Sequence[State], separator: str = "\n") -> Joined:
    """Bring branches together, to read their variables and to append what they have said.

    Args:
        forks: of one ``s.fork(n)``.
        separator: between their texts.
    """
    return Joined(tuple(forks), separator)
