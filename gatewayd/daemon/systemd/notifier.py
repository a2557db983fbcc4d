"""Tells the service manager how the daemon is, from the first weight to the last stream.

``systemctl status`` shows the sentence, ``systemctl start`` waits until the model serves and goes
on waiting while it comes nearer, and whoever hangs is ended. Without ``NOTIFY_SOCKET`` all of
this is nothing.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from enum import Enum

from gatewayd.daemon.systemd import watchdog
from gatewayd.daemon.systemd.notify import notify
from gatewayd.daemon.systemd.watchdog import LivenessProgress
from gatewayd.engines.api import Fleet, ReplicaState

_log = logging.getLogger(__name__)

_TICK_SECONDS = 0.5
_TELL_SECONDS = 5.0
_EXTEND_SECONDS = 30.0
"""That a start may take from each sign of progress."""

_LAST_SECONDS = 15.0
"""After the requests have had their time: engines end, the store is closed."""


class _Phase(Enum):
    LOADING = "loading"
    SERVING = "serving"
    STOPPING = "stopping"


class Manager:
    """The service manager, as the daemon speaks to it; called from the event loop only.

    Args:
        model: what is served, by its name.
        fleet: the engines.
        progress: what must move.
        environ: the environment; None takes the process's own.
    """

    def __init__(
        self,
        model: str,
        fleet: Fleet,
        progress: LivenessProgress,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        environ = os.environ if environ is None else environ
        self._model = model
        self._fleet = fleet
        self._progress = progress
        self._is_asked = bool(environ.get("NOTIFY_SOCKET"))
        self._feeding = watchdog.interval(environ)
        self._phase = _Phase.LOADING
        self._status = self._note = self._trouble = self._failure = ""

    async def run(self) -> None:
        """Speak until cancelled."""
        if not self._is_asked:
            return
        every = _TELL_SECONDS if self._feeding is None else self._feeding
        tick = min(_TICK_SECONDS, every)
        next_at = 0.0
        while True:
            if (now := time.monotonic()) >= next_at:
                next_at = now + every
                self._tell()
            await self._progress.sleep(tick)

    def ready(self) -> None:
        """The model serves."""
        if self._phase is _Phase.LOADING:
            self._phase = _Phase.SERVING
            self._say("READY=1")

    def reloading(self) -> None:
        """The configuration is being read."""
        if self._phase is _Phase.SERVING:
            self._note = ""
            now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
            notify(f"RELOADING=1\nMONOTONIC_USEC={now}")

    def reloaded(self, refusal: str = "") -> None:
        """It has been read.

        Args:
            refusal: why the one before stays; it is shown until the next one is taken.
        """
        moment = time.strftime("%H:%M:%S")
        self._note = f"; the configuration of {moment} was refused: {refusal}" if refusal else ""
        if self._phase is _Phase.SERVING:
            self._say("READY=1")

    def stopping(self, seconds: float, failure: str = "") -> None:
        """The daemon ends.

        Args:
            seconds: that requests in flight have.
            failure: why it ends, unless it was asked to; it stays in the status.
        """
        self._phase = _Phase.STOPPING
        self._failure = failure
        # The daemon's own limit is the one that counts, whatever the unit says.
        extend = int((seconds + _LAST_SECONDS) * 1e6)
        self._say("STOPPING=1", f"EXTEND_TIMEOUT_USEC={extend}")

    def _tell(self) -> None:
        trouble = self._progress.trouble()
        if trouble and trouble.split()[:3] != self._trouble.split()[:3]:
            _log.warning("watchdog keep-alive to the service manager withheld: %s", trouble)
        self._trouble = trouble
        lines = []
        if not trouble and self._feeding is not None:
            lines.append("WATCHDOG=1")
        if not trouble and self._phase is _Phase.LOADING:
            lines.append(f"EXTEND_TIMEOUT_USEC={int(_EXTEND_SECONDS * 1e6)}")
        self._say(*lines)

    def _say(self, *lines: str) -> None:
        """Send lines, and the status if it is another."""
        status = " ".join(self._sentence().split())
        if status != self._status:
            self._status = status
            lines = (*lines, f"STATUS={status}")
        if lines:
            notify("\n".join(lines))

    def _sentence(self) -> str:
        replicas = self._fleet.status()
        running = sum(one.stats.num_running for one in replicas)
        waiting = sum(one.stats.num_waiting for one in replicas) + self._fleet.num_pending
        away = [one for one in replicas if one.state is not ReplicaState.READY]
        troubles = [f"engine {one.index} {one.state.value}: {one.detail}" for one in away]
        if self._phase is _Phase.STOPPING:
            return self._failure or f"finishing {running + waiting} requests"
        if self._phase is _Phase.LOADING:
            return f"loading {self._model}; {'; '.join(troubles)}"
        shown = "; ".join(
            [f"serving {self._model}, {running} running, {waiting} waiting", *troubles]
        )
        if self._fleet.condition == "paused":
            shown += "; admission paused by an operator"
        if self._trouble:
            shown += f"; {self._trouble}"
        return shown + self._note
