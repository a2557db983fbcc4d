"""Child process of an offline job: the job comes from stdin, JSON events go to stdout."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import TypeVar

import msgspec

Job = TypeVar("Job", bound=msgspec.Struct)


def read_job(job_type: type[Job]) -> tuple[Job, Callable[[msgspec.Struct], None]]:
    """Read the job of this process, and redirect its other output to stderr.

    Returns:
        The job, and a function that writes an event.
    """
    # Ctrl-C reaches the parent, too, which handles it: end without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # If the parent process is killed, exit silently as well.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    # Plugins may print to stdout: send that to stderr, so that stdout carries events only.
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def emit(event: msgspec.Struct) -> None:
        output.write(msgspec.json.encode(event) + b"\n")
        output.flush()

    return msgspec.json.decode(sys.stdin.buffer.read(), type=job_type), emit
