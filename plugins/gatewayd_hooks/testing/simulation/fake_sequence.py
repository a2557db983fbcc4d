"""A request as the fake engine of a scheduler knows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class FakeSequence:
    """One request in a fake queue.

    Attributes:
        slot: where its columns are; -1 when it has ended.
        length: tokens at which it ends.
        cached: tokens it would find in the prefix cache if admitted now.
        priority: its class.
        tenant: its tenant's number.
        computed: tokens computed for it in all.
        pages: pages it holds.
        is_running: whether it holds a row.
        held: steps for which it had better wait.
        is_shown: whether the scheduler is told so before it plans.
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
