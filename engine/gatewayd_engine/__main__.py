"""Start an engine: ``python -m gatewayd_engine --fd N``, as the executor does."""

from __future__ import annotations

import argparse
import gc
import signal
import sys

from gatewayd_engine.process.frames import EngineSocket
from gatewayd_engine.process.logs import configure
from gatewayd_engine.process.messages import Fatal
from gatewayd_engine.process.threads import configure_threads, settle_cpus


def main() -> int:
    """Adopt the socket, read the configuration, and only then import torch."""
    parser = argparse.ArgumentParser(prog="gatewayd-engine", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="inherited stream socket")
    stream = EngineSocket.from_fd(parser.parse_args().fd)
    # Ctrl-C in the daemon's terminal is for the daemon, which then shuts the engine down.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        config = stream.read_config()
    except EOFError:
        # The daemon has ended before it sent a configuration: nothing to serve, and no error.
        return 0
    configure(config)
    # Before torch is imported: OpenMP reads its settings when it is loaded.
    try:
        threads = configure_threads(settle_cpus(config))
    except ValueError as error:
        stream.send(Fatal(type(error).__name__, str(error)))
        return 1

    # Imported objects live as long as the process: scanning them takes a quarter of the start.
    gc.disable()
    import torch

    from gatewayd_engine.core.loop import serve

    gc.freeze()
    gc.enable()
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    return serve(stream, config)


if __name__ == "__main__":
    sys.exit(main())
