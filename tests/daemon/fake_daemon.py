"""Real daemon over fake engines: ``python fake_daemon.py KEY=VALUE...``.

Each argument is a dotted key of the configuration; ``FAKE_*`` variables reach the engines. SIGUSR1
blocks the event loop for ``test.block`` seconds; with ``test.store_signal`` the daemon gets that
signal while its store starts.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from gatewayd.cli.lazy import gc_paused

with gc_paused():
    import gatewayd.engines.replicas.engine_process as starting
    from gatewayd.config.load import load
    from gatewayd.daemon.options import DaemonOptions, StartError
    from gatewayd.daemon.resources import PersistentResources
    from gatewayd.daemon.run import run
    from gatewayd.tracing import logs

FAKE_ENGINE = Path(__file__).with_name("fake_engine.py")


def _fake() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("FAKE_")}


def _signal_at_store_start(number: int) -> None:
    start = PersistentResources.start

    async def interrupted(self: PersistentResources) -> None:
        os.kill(os.getpid(), number)
        await start(self)

    PersistentResources.start = interrupted  # type: ignore[method-assign]


def main() -> int:
    """Run until a signal."""
    flags = dict(argument.split("=", 1) for argument in sys.argv[1:])
    if "test.backoff" in flags:
        starting._BACKOFF_SECONDS = (float(flags.pop("test.backoff")),)  # type: ignore[assignment]
    block = float(flags.pop("test.block", 0))
    signal.signal(signal.SIGUSR1, lambda *_: time.sleep(block))
    if number := int(flags.pop("test.store_signal", 0)):
        _signal_at_store_start(number)
    loaded = load(None, flags).config
    logs.configure(loaded.log)
    command = (sys.executable, str(FAKE_ENGINE), "--fd", "{fd}")
    try:
        options = DaemonOptions(lambda: load(None, flags).config, command, _fake())
        return run(loaded, options)
    except StartError as error:
        print(f"gatewayd: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
