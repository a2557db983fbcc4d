"""``python -m gatewayd_engine.offline.quality``: reads a job from stdin, writes JSON events."""

from __future__ import annotations

import logging
import os
import signal
import sys

import msgspec

from gatewayd_engine.offline.quality.job import Event, QualityJob
from gatewayd_engine.process.threads import configure_threads


def main() -> int:
    """Run the quality job on stdin and write its events to stdout, one per line."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # If the parent process is killed, exit silently as well.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    # Plugins may print to stdout: send that to stderr, so that stdout carries events only.
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=QualityJob)
    logging.basicConfig(level=logging.ERROR)
    threads = configure_threads(job.schemes[0].config.threads)

    import torch

    from gatewayd_engine.offline.quality.evaluate import measure
    from gatewayd_hooks.host.catalog import Catalog
    from gatewayd_hooks.host.loading import PluginHost

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)

    def emit(event: Event) -> None:
        output.write(msgspec.json.encode(event) + b"\n")
        output.flush()

    measure(job, PluginHost(Catalog.installed()), emit)
    return 0


if __name__ == "__main__":
    sys.exit(main())
