"""``python -m gatewayd_engine.offline.quantize``: reads a job from stdin, writes JSON events."""

from __future__ import annotations

import logging

from gatewayd_engine.offline.child_job import read_job
from gatewayd_engine.offline.quantize.job import QuantizeJob
from gatewayd_engine.process.threads import configure_threads
from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.host.loading import PluginHost


def main() -> None:
    """Run the quantization job."""
    job, emit = read_job(QuantizeJob)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    # Before torch is imported: OpenMP reads its settings when it is loaded.
    threads = configure_threads(job.threads)

    import torch

    from gatewayd_engine.offline.quantize.run import quantize

    torch.set_num_threads(threads)
    quantize(job, PluginHost(Catalog.installed()), emit)


if __name__ == "__main__":
    main()
