"""Handover of state from a strategy to its replacement, if both know the state's format.

Both methods are optional. A strategy without them starts empty, and the host passes it what the
engine knows, as after a fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class HandoverState:
    """Exported state of a strategy.

    Attributes:
        form: format of ``content``, such as ``hash/1``; a strategy that does not know the format
            does not access the content.
        content: passed by reference, in the same process: no copy is made.
    """

    form: str
    content: Any


@runtime_checkable
class LeavesState(Protocol):
    """Strategy whose state others can take over."""

    def export_state(self) -> HandoverState:
        """Return the state.

        It may or may not be imported, and then the strategy is closed or goes on.
        """


@runtime_checkable
class TakesState(Protocol):
    """Strategy that can take over the state of another."""

    def import_state(self, state: HandoverState) -> bool:
        """Take over a state; called after ``open``, before anything else.

        Copy what ``close`` of the other would invalidate. A prefix cache that takes over a state
        also gets the trails that the other had begun, and an eviction strategy all its pages.

        Returns:
            Whether it was taken over. If not, nothing has changed.
        """


def hand_over(old: object, new: object) -> bool:
    """Pass the state of one strategy to another; return whether it was taken over.

    Both may be wrapped by a ledger, whose objects have the methods of the strategies they wrap.
    """
    leave, take = getattr(old, "export_state", None), getattr(new, "import_state", None)
    if not callable(leave) or not callable(take):
        return False
    return take(leave()) is True


# Former name, supported until the major version of the contract is raised.
State = HandoverState
