"""``python -m gatewayd_engine.offline.quantize``: a job on stdin, what comes of it on stdout."""

from __future__ import annotations

import logging
import os
import signal
import sys

import msgspec

from gatewayd_engine.offline.quantize.job import Event, QuantizeJob
from gatewayd_engine.process.threads import settle


def main() -> int:
    """Quantize what is asked for."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Whoever is told may be killed: then this ends, too, and says nothing.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    # What plugins print must not stand between the lines.
    told = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=QuantizeJob)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    threads = settle(job.threads)

    import torch

    from gatewayd_engine.offline.quantize.run import quantize
    from gatewayd_hooks.host.catalog import Catalog
    from gatewayd_hooks.host.loading import PluginHost

    torch.set_num_threads(threads)

    def tell(event: Event) -> None:
        told.write(msgspec.json.encode(event) + b"\n")
        told.flush()

    quantize(job, PluginHost(Catalog.installed()), tell)
    return 0


if __name__ == "__main__":
    sys.exit(main())
