"""Status notifications to the service manager, from loading to shutdown.

``systemctl status`` shows a sentence, ``systemctl start`` waits until the model serves, with its
timeout extended on progress, and a daemon that hangs is restarted. Does nothing without
``NOTIFY_SOCKET``.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum

from gatewayd.daemon.systemd import watchdog
from gatewayd.daemon.systemd.notify import notify
from gatewayd.daemon.systemd.watchdog import LivenessProgress
from gatewayd.engines.api import Fleet, ReplicaState

_log = logging.getLogger(__name__)

_TICK_SECONDS = 0.5
_TELL_SECONDS = 5.0
_EXTEND_SECONDS = 30.0
"""Extension of the start timeout on each sign of progress."""

_LAST_SECONDS = 15.0
"""Time after the drain, for engines to stop and the store to close."""


class _Phase(Enum):
    LOADING = "loading"
    SERVING = "serving"
    STOPPING = "stopping"


class ServiceNotifier:
    """Reports the daemon's state to the service manager; called from the event loop only.

    Args:
        models: returns the names of the models, with their engines.
        progress: liveness checks.
        environ: the environment; None for the process's own.
    """

    def __init__(
        self,
        models: Callable[[], Sequence[tuple[str, Fleet]]],
        progress: LivenessProgress,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        environ = os.environ if environ is None else environ
        self._models = models
        self._progress = progress
        self._is_asked = bool(environ.get("NOTIFY_SOCKET"))
        self._feeding = watchdog.interval(environ)
        self._phase = _Phase.LOADING
        self._status = self._note = self._trouble = self._failure = ""

    async def run(self) -> None:
        """Send notifications until cancelled."""
        if not self._is_asked:
            return
        every = _TELL_SECONDS if self._feeding is None else self._feeding
        # Shorter than the interval of reports: each sleep also measures the event loop's delay.
        tick = min(_TICK_SECONDS, every)
        next_at = 0.0
        while True:
            if (now := time.monotonic()) >= next_at:
                next_at = now + every
                self._report()
            await self._progress.sleep(tick)

    def ready(self) -> None:
        """Report that the model serves."""
        if self._phase is _Phase.LOADING:
            self._phase = _Phase.SERVING
            self._send("READY=1")

    def reloading(self) -> None:
        """Report that the configuration is being reloaded."""
        # Not while loading: the READY=1 that ends a reload would claim that the model serves.
        if self._phase is _Phase.SERVING:
            self._note = ""
            # sd_notify(3) wants this clock in microseconds with RELOADING=1.
            now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
            notify(f"RELOADING=1\nMONOTONIC_USEC={now}")

    def reloaded(self, refusal: str = "") -> None:
        """Report the end of a reload.

        Args:
            refusal: why the previous configuration stays; shown until the next successful reload.
        """
        moment = time.strftime("%H:%M:%S")
        self._note = f"; the configuration of {moment} was refused: {refusal}" if refusal else ""
        if self._phase is _Phase.SERVING:
            self._send("READY=1")

    def stopping(self, seconds: float, failure: str = "") -> None:
        """Report that the daemon stops.

        Args:
            seconds: timeout of the drain.
            failure: reason of a failure, which stays in the status; empty for a requested stop.
        """
        self._phase = _Phase.STOPPING
        self._failure = failure
        # The daemon's own timeout applies, whatever the unit sets.
        extend = int((seconds + _LAST_SECONDS) * 1e6)
        self._send("STOPPING=1", f"EXTEND_TIMEOUT_USEC={extend}")

    def _report(self) -> None:
        trouble = self._progress.problem()
        # The first words name the problem; the duration behind them changes with every report.
        if trouble and trouble.split()[:3] != self._trouble.split()[:3]:
            _log.warning("watchdog keep-alive to the service manager withheld: %s", trouble)
        self._trouble = trouble
        lines = []
        if not trouble and self._feeding is not None:
            lines.append("WATCHDOG=1")
        # While weights load, systemd waits as long as the engines make progress.
        if not trouble and self._phase is _Phase.LOADING:
            lines.append(f"EXTEND_TIMEOUT_USEC={int(_EXTEND_SECONDS * 1e6)}")
        self._send(*lines)

    def _send(self, *lines: str) -> None:
        """Send lines, with the status if it has changed."""
        # A line break would start another assignment of the protocol.
        status = " ".join(self._sentence().split())
        if status != self._status:
            self._status = status
            lines = (*lines, f"STATUS={status}")
        if lines:
            notify("\n".join(lines))

    def _sentence(self) -> str:
        models = self._models()
        running = waiting = 0
        troubles: list[str] = []
        for name, fleet in models:
            replicas = fleet.status()
            running += sum([one.stats.num_running for one in replicas])
            waiting += sum([one.stats.num_waiting for one in replicas]) + fleet.num_pending
            # The name tells engines apart only where there are several models.
            engine = "engine" if len(models) == 1 else f"{name} engine"
            troubles += [
                f"{engine} {one.index} {one.state.value}: {one.detail}"
                for one in replicas
                if one.state is not ReplicaState.READY
            ]
        names = ", ".join([name for name, _ in models])
        if self._phase is _Phase.STOPPING:
            return self._failure or f"finishing {running + waiting} requests"
        if self._phase is _Phase.LOADING:
            return f"loading {names}; {'; '.join(troubles)}"
        shown = "; ".join([f"serving {names}, {running} running, {waiting} waiting", *troubles])
        paused = [name for name, fleet in models if fleet.condition == "paused"]
        if paused:
            of = "" if len(models) == 1 else f" of {', '.join(paused)}"
            shown += f"; admission{of} paused by an operator"
        if self._trouble:
            shown += f"; {self._trouble}"
        return shown + self._note
