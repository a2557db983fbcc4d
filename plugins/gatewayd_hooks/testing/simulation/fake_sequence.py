"""Request in the simulated engine of a scheduler."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class FakeSequence:
    """One request in a fake queue.

    Attributes:
        slot: index of its columns; -1 when it has ended.
        length: tokens at which it ends.
        cached: tokens it would find in the prefix cache if admitted now.
        priority: its class.
        tenant: its tenant's number.
        computed: tokens computed for it in all.
        pages: pages it references.
        is_running: whether it has a batch row.
        held: steps for which it is held.
        is_shown: whether the scheduler sees that before it plans.
    """

    slot: int
    length: int
    cached: int
    priority: int
    tenant: int = 0
    computed: int = 0
    pages: int = 0
    is_running: bool = False
    held: int = 0
    is_shown: bool = True
