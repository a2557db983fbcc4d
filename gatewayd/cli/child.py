"""Runs a module of the engine in a process of its own: torch stays out of the command line's."""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Iterator
from typing import Any

import msgspec

from gatewayd.engines.replicas.launch import ENGINE_ENV
from gatewayd_hooks.helpers import children


class ChildFailed(Exception):
    """The process ended before its time; one sentence."""


def told(
    module: str,
    does: str,
    job: msgspec.Struct,
    events: Any,  # noqa: ANN401
    names: Collection[str] = (),
) -> Iterator[Any]:
    """What a module tells of a job, as it comes.

    Args:
        module: reads the job from stdin, as JSON, and writes events to stdout, a line each.
        does: what it does, for the sentence.
        job: the job.
        events: the type of the events.
        names: of variables that it gets besides the usual ones, ``[engine] environment``.

    Raises:
        ChildFailed: it ended before its time.
    """
    with children.start(
        children.python("-m", module),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=children.environment(ENGINE_ENV, names),
    ) as child:
        if child.stdin is None or child.stdout is None:
            raise ChildFailed(f"the process that {does} has no pipes")
        try:
            child.stdin.write(msgspec.json.encode(job))
            child.stdin.close()
            for line in child.stdout:
                yield msgspec.json.decode(line, type=events)
        except BrokenPipeError:
            pass  # its status says more
        except BaseException:
            child.kill()
            raise
    if child.returncode:
        raise ChildFailed(f"the process that {does} ended with status {child.returncode}")
