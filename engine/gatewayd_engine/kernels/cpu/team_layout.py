"""Memory layout of a thread team: numbers of 64 bits, those that threads change a line apart."""

from __future__ import annotations

from enum import IntEnum


class Field(IntEnum):
    """Index of a number in the team's memory.

    ``GENERATION``: of the last job; a negative one stops the threads. ``ARRIVED``: at the barriers
    of this job, all together. ``DONE``: threads that have ended it, but for the caller's.
    ``SLEEPING``: threads that wait in the kernel. ``FUNCTION``, ``ARGUMENTS``: of the job.
    """

    GENERATION = 0
    ARRIVED = 16
    DONE = 32
    SLEEPING = 48
    FUNCTION = 64
    ARGUMENTS = 65


SIZE = 80
