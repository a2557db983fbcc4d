"""Run of the daemon: starts engines and serves requests until a signal, then drains.

The port is open at once; ``/readyz`` reports when the model is loaded. Shutdown happens in reverse
order, with time for requests in flight.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time

import uvloop
from rich.console import Console

from gatewayd import __version__
from gatewayd.config.catalogue import model_configs
from gatewayd.config.tables import Config
from gatewayd.daemon.banner import show_loading
from gatewayd.daemon.compose import compose
from gatewayd.daemon.model_fetch import fetch_model
from gatewayd.daemon.options import DaemonOptions, StartError
from gatewayd.daemon.progress_stderr import ProgressStderr
from gatewayd.daemon.routes import close_routes
from gatewayd.hub.errors import HubError
from gatewayd.plugins.own_ports import OwnPorts
from gatewayd.runtime import garbage_collector, malloc_limits
from gatewayd.tracing import logs
from gatewayd_engine.process import huge_pages

_log = logging.getLogger("gatewayd.daemon")

_POLL_SECONDS = 0.05
"""Polling interval for remaining requests during a drain."""

_CUT_SECONDS = 2.0
"""Time after requests were cut, for their last event to reach the clients."""


class Daemon:
    """A daemon; create it, then await ``run`` once.

    Attributes:
        parts: its parts.
    """

    def __init__(self, config: Config, options: DaemonOptions) -> None:
        """Bind the port and build the parts.

        Raises:
            StartError: the port, the model's folder, the store or a strategy cannot be used.
        """
        self._stop_reason = ""
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self.parts = compose(config, options, self._drain)
        self._fleets = self.parts.fleets
        self._own_ports = OwnPorts(self.parts.plugged.protocols)

    async def run(self) -> int:
        """Serve until a signal, or until no engine can be started.

        Returns:
            The exit status: 0 after a signal, 1 when the engines have failed.
        """
        if not Console(file=sys.stderr).is_terminal:
            return await self._run(None)
        above = ProgressStderr()  # before there are engines, which inherit standard error
        try:
            return await self._run(above)
        finally:
            above.close()

    async def _run(self, above: ProgressStderr | None) -> int:
        parts = self.parts
        # First: by its default action a signal would leave engines without a daemon.
        self._handle_signals()
        if parts.admin is not None:
            # Lines are read over the admin API alone; without it none are buffered.
            logs.add_handler(parts.lines)
        # Before the store: batches that it resumes wait in the fleet for an engine.
        self._fleets.start()
        await parts.durable.start()
        residing = asyncio.create_task(parts.residency.run(), name="residency")
        judging = asyncio.create_task(parts.deployments.run(), name="deployments")
        managing = asyncio.create_task(parts.notifier.run(), name="service manager")
        serving = asyncio.create_task(parts.server.serve(parts.listening.listeners), name="http")
        failing = asyncio.create_task(self._fleets.wait_failed(), name="engines")
        admin = None
        if parts.admin is not None:
            admin = asyncio.create_task(parts.admin.server.run_until_stopped(), name="admin")
        greeting = asyncio.create_task(self._show_startup(above), name="greeting")
        stopping = asyncio.create_task(self._stop.wait(), name="stop")
        loading = ", ".join([model.name for model in parts.models if model.preloads])
        _log.info("listening on %s, loading %s", parts.listening.url, loading or "nothing yet")
        await self._own_ports.start()
        # Ends by a signal, by the failure of all engines, or by that of the server.
        await asyncio.wait([serving, failing, stopping], return_when=asyncio.FIRST_COMPLETED)
        # Awaited, so that its drawing is erased before the log lines of the shutdown.
        greeting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await greeting
        if above is not None:
            above.restore()
        status = 0
        if failing.done():
            status = 1
            self._stop_reason = failing.result()
            _log.error("cannot start any engine: %s", self._stop_reason)
        await self._end(serving, failure=self._stop_reason if status else "")
        # The admin API ends after everything else, so that consoles can follow the drain.
        if parts.admin is not None and admin is not None:
            parts.admin.server.should_exit = True
            await admin
            logs.remove_handler(parts.lines)
        # The notifier ran until here: a long drain needs keep-alives, too.
        for task in (failing, stopping, managing, residing, judging):
            task.cancel()
        return status

    async def _show_startup(self, above: ProgressStderr | None) -> None:
        """Show progress on a terminal, then report that the model is ready."""
        parts = self.parts
        began = time.monotonic()
        if above is not None:
            fleets = [
                (model.name, model.fleet) for model in parts.models if not model.fleet.is_asleep
            ]
            drawing = asyncio.create_task(show_loading(fleets, above.console), name="progress")
        try:
            await self._fleets.wait_ready()
        finally:
            if above is not None:
                drawing.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await drawing
                above.restore()
        # Once the model is loaded: what exists now lives as long as the daemon.
        garbage_collector.freeze_heap()
        seconds = time.monotonic() - began
        names = ", ".join([model.name for model in parts.models])
        _log.info(
            "serving %s at %s, ready after %.2f s",
            names,
            parts.listening.url,
            seconds,
        )
        if above is not None:
            parts.ready_message.show(above.console, seconds)
        # Before the observers, which may be slow: `systemctl start` waits for this.
        parts.notifier.ready()
        await asyncio.to_thread(huge_pages.use_huge_pages)
        parts.plugged.started(version=__version__, model=parts.ready_message.model)

    async def _end(self, serving: asyncio.Task[None], failure: str) -> None:
        """Drain requests, cut remaining ones, and stop the engines."""
        parts = self.parts
        seconds = parts.config.server.drain_seconds
        # First, because it extends the service manager's stop timeout to that of the drain.
        parts.notifier.stopping(seconds, failure)
        parts.plugged.stopping(self._stop_reason)
        parts.deployments.close()  # copies of requests would hold up the drain
        await parts.local_models.close()  # clients that follow pulls would hold up the drain
        await parts.durable.stop()  # interrupted lines of batches run again after the next start
        closing = asyncio.create_task(self._own_ports.stop(seconds), name="own ports")
        if parts.listening.is_held:
            # Open connections still send requests, and requests that are held would never end.
            self._fleets.release_held()
        else:
            self._fleets.drain()
        deadline = time.monotonic() + seconds
        if not await self._finished(serving, seconds):
            _log.warning("drain timeout: cancelling %d sequences", self._fleets.num_unfinished)
            self._fleets.fail_remaining()
            # Clients that do not read their last event must not delay the end.
            await asyncio.wait([serving], timeout=_CUT_SECONDS)
            parts.server.force_exit = True
        await asyncio.wait([closing], timeout=_CUT_SECONDS)
        closing.cancel()
        # Engines may persist their prefix caches in what remains of the drain's time.
        left = 0.0 if self._hurry.is_set() else max(0.0, deadline - time.monotonic())
        await self._fleets.stop(left)
        await parts.deployments.wait_ended()
        await serving
        for model in parts.models:
            await model.guides.close()
        if parts.admin is not None:
            for watching in parts.admin.watching:
                watching.close()
        parts.progress.close()
        parts.residency.close()
        # After the engines, whose last reports settle what aborted requests cost (ADR 0048).
        parts.durable.close()
        close_routes(parts.routes)
        for model in parts.models:
            if model.plugged is not parts.plugged:
                model.plugged.close()
        parts.plugged.close()
        _log.info("stopped")

    async def _finished(self, serving: asyncio.Task[None], seconds: float) -> bool:
        """Wait until no connection is left; return False after the timeout or a second signal."""
        finishing = asyncio.create_task(self._finish(serving), name="finishing")
        hurry = asyncio.create_task(self._hurry.wait(), name="hurry")
        waiting = [finishing, hurry]
        await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        # In all three cases: after a timeout or a second signal the port is still open.
        self.parts.server.should_exit = True
        return serving.done()

    async def _finish(self, serving: asyncio.Task[None]) -> None:
        """Wait for the requests, then close the port and wait for the connections.

        Until then new requests are refused explicitly: load balancers see ``/readyz``, clients 503.
        If systemd owns the port, there are none: the next daemon accepts them.
        """
        if self.parts.listening.is_held:
            await self.parts.server.hand_over()
        while self._fleets.num_unfinished and not serving.done():
            await asyncio.wait([serving], timeout=_POLL_SECONDS)
        self.parts.server.should_exit = True
        await asyncio.wait([serving])

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop, number.name)
        loop.add_signal_handler(signal.SIGHUP, self.parts.reloading.request)

    def _drain(self, who: str) -> None:
        """Drain and stop, as on a first signal; ignored during a drain, unlike a second signal."""
        if not self._stop.is_set():
            self._on_stop(who)

    def _on_stop(self, name: str) -> None:
        if self._stop.is_set():
            _log.warning("%s received again: stopping now", name)
            self._hurry.set()
            self._fleets.stop_saving()
            return
        seconds = self.parts.config.server.drain_seconds
        _log.info("%s received: draining requests for at most %.0f s", name, seconds)
        self._stop_reason = name
        self._stop.set()


def run(config: Config, options: DaemonOptions) -> int:
    """Run a daemon on a new event loop; return the exit status.

    Raises:
        StartError: it cannot start.
    """
    try:
        for model in model_configs(config):
            if not fetch_model(model.config):
                return 0
    except HubError as error:
        raise StartError(str(error)) from error
    malloc_limits.limit_malloc()
    # Not Python's 5 ms: uvloop takes the interpreter lock for each event, and would wait that long
    # while another thread parses a large body (ADR 0049).
    sys.setswitchinterval(0.0005)

    async def main() -> int:
        return await Daemon(config, options).run()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())
