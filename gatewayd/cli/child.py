"""Offline jobs in a child process, so that the command line itself does not import torch."""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Iterator
from typing import Any

import msgspec

from gatewayd.engines.replicas.launch import ENGINE_ENV
from gatewayd_hooks.helpers import children


class ChildFailed(Exception):
    """The child process exited prematurely; the message is a sentence."""


def run_job(
    module: str,
    does: str,
    job: msgspec.Struct,
    events: Any,  # noqa: ANN401
    names: Collection[str] = (),
) -> Iterator[Any]:
    """Run a job in a child process and yield its events as they arrive.

    Args:
        module: reads the job from stdin as JSON and writes events to stdout, one per line.
        does: verb for error messages: "the process that ``does``".
        job: the job.
        events: type of the events.
        names: environment variables to pass in addition, from ``[engine] environment``.

    Raises:
        ChildFailed: the process exited prematurely.
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
            # The job ends with the end of the stream.
            child.stdin.close()
            for line in child.stdout:
                yield msgspec.json.decode(line, type=events)
        except BrokenPipeError:
            pass  # the exit status below says more
        except BaseException:
            # Also if the caller stops reading: leaving the block would wait for the job to
            # complete.
            child.kill()
            raise
    if child.returncode:
        raise ChildFailed(f"the process that {does} ended with status {child.returncode}")
