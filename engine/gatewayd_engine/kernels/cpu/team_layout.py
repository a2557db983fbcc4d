"""Memory of a thread team: numbers of 64 bits, those that threads change a cache line apart.

Published jobs take slots of a ring. A thread that lost its processor may be some jobs behind: it
finds their work done, and catches up. A slot is used again once all threads have left it.
"""

from __future__ import annotations

from enum import IntEnum


class Team(IntEnum):
    """Index of a number of the team.

    ``GENERATION``: number of the last published job, below 2**31; a negative one stops the threads.
    ``SLEEPING``: threads that wait in the kernel. ``OPEN``: place of the slot of the job that was
    started last.
    """

    GENERATION = 0
    SLEEPING = 16
    OPEN = 24


class Slot(IntEnum):
    """Index of a number in a job's slot.

    ``LEFT``: threads that have not left the job, but for the caller's. ``FUNCTION``: address of the
    job. ``THREADS``: how many take part. ``ARGUMENTS``: its arguments. ``PHASES``: two counters for
    each phase, of parts drawn and of parts done.
    """

    LEFT = 0
    FUNCTION = 8
    THREADS = 9
    ARGUMENTS = 16
    PHASES = 64


MOST_ARGUMENTS = Slot.PHASES - Slot.ARGUMENTS
RING = 4
"""Slots of published jobs; another one is for jobs of the caller's thread alone."""
HEADER = 32
"""Numbers before the first slot."""


def slot_size(most_phases: int) -> int:
    """Return the numbers of a slot, in whole cache lines."""
    return (Slot.PHASES + 2 * most_phases + 7) // 8 * 8


def team_size(most_phases: int) -> int:
    """Return the numbers of a team."""
    return HEADER + (RING + 1) * slot_size(most_phases)
