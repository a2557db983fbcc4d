"""Runs the process that measures quality: torch stays out of the command line's own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import msgspec

from gatewayd.launch import ENGINE_ENV
from gatewayd_engine.quality.job import Event, Failed, Job

_COMMAND = (sys.executable, "-m", "gatewayd_engine.quality")


class ChildFailed(Exception):
    """Nothing can be measured; one sentence."""


def measure(job: Job) -> Iterator[Event]:
    """What the child tells, as it comes.

    Raises:
        ChildFailed: it had no reference to compare with, or ended before its time.
    """
    with subprocess.Popen(
        _COMMAND,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | ENGINE_ENV,
    ) as child:
        if child.stdin is None or child.stdout is None:
            raise ChildFailed("the process that measures has no pipes")
        try:
            child.stdin.write(msgspec.json.encode(job))
            child.stdin.close()
            for line in child.stdout:
                event = msgspec.json.decode(line, type=Event)
                if isinstance(event, Failed):
                    raise ChildFailed(event.reason)
                yield event
        except BrokenPipeError:
            pass  # its status says more
        except BaseException:
            child.kill()
            raise
    if child.returncode:
        raise ChildFailed(f"the process that measures ended with status {child.returncode}")
