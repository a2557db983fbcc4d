"""``python -m gatewayd_engine.offline.quality``: a job on stdin, its results on stdout."""

from __future__ import annotations

import logging
import os
import signal
import sys

import msgspec

from gatewayd_engine.offline.quality.job import Event, QualityJob
from gatewayd_engine.process.threads import settle


def main() -> int:
    """Measure what is asked for."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Whoever is told may be killed: then this ends, too, and says nothing.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    # What plugins print must not stand between the lines.
    told = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=QualityJob)
    logging.basicConfig(level=logging.ERROR)
    threads = settle(job.schemes[0].config.threads)

    import torch

    from gatewayd_engine.offline.quality.evaluate import measure
    from gatewayd_hooks.host.catalog import Catalog
    from gatewayd_hooks.host.loading import PluginHost

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)

    def tell(event: Event) -> None:
        told.write(msgspec.json.encode(event) + b"\n")
        told.flush()

    measure(job, PluginHost(Catalog.installed()), tell)
    return 0


if __name__ == "__main__":
    sys.exit(main())
