"""Execs the command in its arguments, after requesting to be killed when its parent ends.

Run by its path, in the child: ``parent_death_signal.py PARENT_PID PROGRAM ARGV...``. Between fork
and exec of a threaded daemon only system calls are safe, so the request is made after exec, here;
the kernel preserves it through the next exec.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> None:
    """Request the signal, then exec; returns only by raising."""
    parent, program, command = int(argv[1]), argv[2], argv[3:]
    if sys.platform == "linux":
        # None is the C library that the interpreter has loaded.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the request
            sys.exit(1)
    os.execv(program, command)


if __name__ == "__main__":
    main(sys.argv)
