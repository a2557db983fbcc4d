"""``python -m gatewayd_engine.offline.quality``: reads a job from stdin, writes JSON events."""

from __future__ import annotations

import logging

from gatewayd_engine.offline.child_job import read_job
from gatewayd_engine.offline.quality.job import QualityJob
from gatewayd_engine.process.threads import configure_threads
from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.host.loading import PluginHost


def main() -> None:
    """Run the quality job."""
    job, emit = read_job(QualityJob)
    logging.basicConfig(level=logging.ERROR)
    # Before torch is imported: OpenMP reads its settings when it is loaded.
    threads = configure_threads(job.schemes[0].config.threads)

    import torch

    from gatewayd_engine.offline.quality.evaluate import measure

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    measure(job, PluginHost(Catalog.installed()), emit)


if __name__ == "__main__":
    main()
