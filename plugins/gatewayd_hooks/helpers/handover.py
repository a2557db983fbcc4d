"""State that a strategy leaves to the one that takes its place, where both know its form.

Both methods are optional. A strategy that has neither begins with nothing, and the host tells it
what the engine knows, as after a fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class HandoverState:
    """What a strategy knows.

    Attributes:
        form: names what ``content`` is, such as ``hash/1``; a strategy that does not know the
            form does not look at the content.
        content: handed over as it is, in the same process: no copy is made.
    """

    form: str
    content: Any


@runtime_checkable
class LeavesState(Protocol):
    """A strategy whose state others can go on with."""

    def export_state(self) -> HandoverState:
        """Show the state; it is taken or not, and then the strategy is closed or goes on."""


@runtime_checkable
class TakesState(Protocol):
    """A strategy that can go on with the state of another."""

    def import_state(self, state: HandoverState) -> bool:
        """Go on with a state; called after ``open``, before anything else.

        Copy what ``close`` of the other would spoil. A prefix cache that takes a state is also
        given the trails that the other had begun, and an eviction all its pages.

        Returns:
            Whether it was taken. If not, nothing has changed.
        """


def hand_over(old: object, new: object) -> bool:
    """Give the state of one strategy to another; whether it was taken.

    Both may be watched by a ledger, whose objects have the methods of what they stand for.
    """
    leave, take = getattr(old, "export_state", None), getattr(new, "import_state", None)
    if not callable(leave) or not callable(take):
        return False
    return take(leave()) is True


# Its former name, kept until the major version of the contract rises.
State = HandoverState
