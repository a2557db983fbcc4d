"""The composition root: configuration in, a serving process out, until a signal ends it.

Order: bind the port, read the text side, load the gateway's strategies, start engines, serve.
The port is open at once; ``/readyz`` says when the model is. Ending is the same in reverse,
with time for the requests in flight.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import uvloop
from rich.console import Console

from gatewayd import __version__, launch, logs
from gatewayd.admin.app import build_admin
from gatewayd.admin.operations import Operations, operation_routes
from gatewayd.admin.pinning import Pinning
from gatewayd.admin.plugins import plugin_routes
from gatewayd.admin.prefixes import Prefixes, prefix_routes
from gatewayd.admin.recording import Record
from gatewayd.admin.server import AdminServer
from gatewayd.admin.snapshot import STREAMED_SECONDS, Snapshots, Sources
from gatewayd.admin.snapshot_routes import PrefixRoute, snapshot_routes
from gatewayd.admin.watching import Watching
from gatewayd.banner import Welcome, show_loading
from gatewayd.config import Config
from gatewayd.control import Control
from gatewayd.durable import Durable
from gatewayd.engines.fleet import EngineFleet
from gatewayd.engines.setup import Launch
from gatewayd.explain.recent import Recent
from gatewayd.guides.checks import GuideChecks
from gatewayd.http.app import build_app
from gatewayd.http.services import Limits, Services
from gatewayd.log_lines import LogLines
from gatewayd.metrics import Metrics
from gatewayd.metrics_service import ReloadCollector
from gatewayd.metrics_store import StoreCollector
from gatewayd.pipeline_live import Live
from gatewayd.plugging import Plugged, check_strategies
from gatewayd.reloading import Reloading
from gatewayd.server import ListenError, Server, is_loopback, listeners, url_of
from gatewayd.service.descriptors import make_room
from gatewayd.service.manager import Manager
from gatewayd.service.watchdog import Progress
from gatewayd.store.faults import StoreError
from gatewayd.text.model import TextModel
from gatewayd_hooks.loading import PluginError

_log = logging.getLogger("gatewayd.daemon")

_POLL_SECONDS = 0.05
"""How often a stopping daemon looks whether requests are left."""

_CUT_SECONDS = 2.0
"""After requests were cut: for their last event to reach the clients."""


class StartError(Exception):
    """The daemon cannot start; the sentence is for the operator."""


@dataclass(frozen=True, slots=True)
class Options:
    """What surrounds the configuration.

    Attributes:
        reload: reads the configuration again, for SIGHUP.
        command: how an engine is started.
        env: environment variables that engines get.
    """

    reload: Callable[[], Config]
    command: Sequence[str] = launch.ENGINE_COMMAND
    env: Mapping[str, str] = field(default_factory=lambda: dict(launch.ENGINE_ENV))


class Daemon:
    """One run of the daemon. Make it, then await ``run`` once."""

    def __init__(self, config: Config, options: Options) -> None:
        """Bind the port and read what is read once.

        Raises:
            StartError: the port, the model's folder or a strategy cannot be used.
        """
        self._config = config
        self._options = options
        self._stop_reason = ""
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        try:
            self._context_len = launch.checked_context_len(config)
            self._text = TextModel.from_folder(launch.model_folder(config))
            self._listeners, self._is_held = listeners(config.server.host, config.server.port)
        except (OSError, ValueError, ListenError) as error:
            raise StartError(str(error)) from error
        self._url = url_of(self._listeners[0])
        make_room(config.server.connections)
        try:
            self._compose()
        except (PluginError, ListenError, StoreError) as error:
            for listener in self._listeners:
                listener.close()
            raise StartError(str(error)) from error

    def _compose(self) -> None:
        self._durable = Durable(self._config)
        try:
            self._compose_beside_store()
        except BaseException:
            self._durable.close()
            raise

    def _in_effect(self, file: Config) -> Config:
        """The configuration with what operators changed; the file alone if that cannot be used."""
        overrides = self._durable.overrides
        overrides.file = file
        config = overrides.over(file)
        if config is not file and (problems := check_strategies(config)):
            _log.error("the configuration is as the file says: %s", "; ".join(problems))
            overrides.disregard()
            return file
        return config

    def _compose_beside_store(self) -> None:
        config = self._config = self._in_effect(self._config)
        name = launch.served_name(config)
        template = self._text.template
        plugged = self._plugged = Plugged.load(
            config, model=name, chat_template=template.source if template else ""
        )
        self._fleet = EngineFleet(
            Launch(
                executor=plugged.executor,
                command=tuple(self._options.command),
                env=dict(self._options.env),
                config=launch.engine_config(config),
                patience=launch.patience(config),
            ),
            plugged.router,
            launch.queue_limits(config),
            config.engine.replicas,
            plugged.admission,
        )
        self._fleet.deadlines = launch.deadlines(config)
        self._control = Control(config, self._fleet, plugged, self._durable.overrides)
        archive, live = self._durable.archive, Live()
        recent = Recent(keep=archive.add, keep_refused=archive.refuse)
        self._durable.tenancy.directory.watch_quotas(self._fleet.bound)
        metrics = Metrics(
            self._fleet,
            name,
            version=__version__,
            max_model_len=self._context_len,
            control=self._control,
            recent=recent,
            slo=config.slo,
            live=live,
        )
        self._control.on_promise = metrics.slo.promise
        plugged.metrics(metrics.registry)
        key = config.server.api_key
        metrics.registry.register(StoreCollector(self._durable.room))
        self._progress = Progress(self._fleet.troubles, self._durable.database.move)
        self._manager = Manager(name, self._fleet, self._progress)
        self._reloading = Reloading(self._options.reload, self._control, self._manager)
        metrics.registry.register(ReloadCollector(self._reloading.outcomes))
        folder = str(launch.model_folder(config))
        self._guides = GuideChecks(lambda: self._control.config.guide, folder, self._fleet)
        services = Services(
            fleet=self._fleet,
            text=self._text,
            models=(name,),
            metrics=metrics,
            version=__version__,
            api_key=None if key is None else key.get_secret_value(),
            allowed_origins=tuple(config.server.allowed_origins),
            only_local_hosts=key is None and all(map(is_loopback, self._listeners)),
            limits=Limits(body_bytes=int(config.server.body_bytes)),
            observers=plugged.observers,
            live=live,
            parsers=plugged.parsers,
            protocols=plugged.protocols,
            durable=self._durable,
            guides=self._guides,
            detector=lambda: self._control.detector,
        )
        self._server = Server(build_app(services), metrics.answered, config.server)
        self._compose_admin(recent, live, metrics)
        self._welcome = Welcome(
            model=name,
            url=self._url,
            can_chat=self._text.template is not None,
            needs_key=key is not None,
        )

    def _compose_admin(self, recent: Recent, live: Live, metrics: Metrics) -> None:
        config, tenancy = self._config, self._durable.tenancy
        key = config.server.api_key
        self._lines = LogLines([] if key is None else [key.get_secret_value()])
        self._admin = None
        if config.admin.socket is None:
            return
        snapshots = Snapshots(
            Sources(
                url=self._url,
                model=launch.served_name(config),
                fleet=self._fleet,
                control=self._control,
                registry=metrics.registry,
                recent=recent,
                live=live,
                tenancy=tenancy,
                lines=self._lines,
            )
        )
        self._watching = Watching(partial(snapshots.make, STREAMED_SECONDS))
        record = Record(tenancy)
        operations = Operations(
            live, self._fleet, self._control, launch.served_name(config), self._drain, record
        )
        prefixes = PrefixRoute(self._fleet.inspection, self._text.tokenizer.decode)
        app = build_admin(
            self._control,
            Pinning(self._text, self._fleet),
            recent,
            tenancy,
            [
                *snapshot_routes(snapshots, self._watching, self._lines, prefixes),
                *operation_routes(operations),
                *prefix_routes(Prefixes(self._fleet, record)),
                *plugin_routes(self._control),
            ],
            live,
            self._durable.archive,
        )
        self._admin = AdminServer(app, config.admin.socket)
        logs.keep(self._lines)

    async def run(self) -> int:
        """Serve until a signal or until no engine can be started.

        Returns:
            The exit status: 0 after a signal, 1 when the engines have failed.
        """
        self._fleet.start()
        await self._durable.start()
        managing = asyncio.create_task(self._manager.run(), name="service manager")
        serving = asyncio.create_task(self._server.serve(self._listeners), name="http")
        failing = asyncio.create_task(self._fleet.wait_failed(), name="engines")
        admin = None
        if self._admin is not None:
            admin = asyncio.create_task(self._admin.run_until_stopped(), name="admin")
        greeting = asyncio.create_task(self._greet(), name="greeting")
        stopping = asyncio.create_task(self._stop.wait(), name="stop")
        self._handle_signals()
        _log.info("listening on %s, loading %s", self._url, self._welcome.model)
        await asyncio.wait([serving, failing, stopping], return_when=asyncio.FIRST_COMPLETED)
        greeting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await greeting
        status = 0
        if failing.done():
            status = 1
            self._stop_reason = failing.result()
            _log.error("no engine can be started: %s", self._stop_reason)
        await self._end(serving, failure=self._stop_reason if status else "")
        if self._admin is not None and admin is not None:
            self._admin.should_exit = True
            await admin
            logs.leave(self._lines)
        for task in (failing, stopping, managing):
            task.cancel()
        return status

    async def _greet(self) -> None:
        """Show progress, then say that the model is ready."""
        began = time.monotonic()
        console = Console(stderr=True)
        if console.is_terminal:
            await show_loading(self._fleet, console, self._welcome.model)
        else:
            await self._fleet.wait_ready()
        # What was made so far lives as long as the daemon: the collector need not look at it.
        gc.collect()
        gc.freeze()
        seconds = time.monotonic() - began
        _log.info("serving %s at %s, ready after %.2f s", self._welcome.model, self._url, seconds)
        if console.is_terminal:
            self._welcome.show(console, seconds)
        self._manager.ready()
        self._plugged.started(version=__version__, model=self._welcome.model)

    async def _end(self, serving: asyncio.Task[None], failure: str) -> None:
        """Let requests finish, cut what is left, end the engines."""
        seconds = self._config.server.drain_seconds
        self._manager.stopping(seconds, failure)
        self._plugged.stopping(self._stop_reason)
        await self._durable.stop()  # lines of batches are run again after the next start
        if self._is_held:
            # Requests come in yet, over connections that are open; what is held would never end.
            self._fleet.release_held()
        else:
            self._fleet.drain()
        deadline = time.monotonic() + seconds
        if not await self._finished(serving, seconds):
            _log.warning("cutting %d sequences", self._fleet.num_unfinished)
            self._fleet.cut()
            await asyncio.wait([serving], timeout=_CUT_SECONDS)
            self._server.force_exit = True
        left = 0.0 if self._hurry.is_set() else max(0.0, deadline - time.monotonic())
        await self._fleet.stop(left)
        await serving
        await self._guides.close()
        if self._admin is not None:
            self._watching.close()
        self._progress.close()
        self._durable.close()
        self._plugged.close()
        _log.info("stopped")

    async def _finished(self, serving: asyncio.Task[None], seconds: float) -> bool:
        """Wait until no connection is left; False after too long or a second signal."""
        finishing = asyncio.create_task(self._finish(serving), name="finishing")
        hurry = asyncio.create_task(self._hurry.wait(), name="hurry")
        waiting = [finishing, hurry]
        await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        self._server.should_exit = True
        return serving.done()

    async def _finish(self, serving: asyncio.Task[None]) -> None:
        """Wait for the requests, then close the port and wait for the connections.

        Until then whoever asks is told: load balancers by ``/readyz``, clients by 503. Where
        systemd holds the port, nobody can ask: the next daemon will answer.
        """
        if self._is_held:
            await self._server.hand_over()
        while self._fleet.num_unfinished and not serving.done():
            await asyncio.wait([serving], timeout=_POLL_SECONDS)
        self._server.should_exit = True
        await asyncio.wait([serving])

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop, number.name)
        loop.add_signal_handler(signal.SIGHUP, self._reloading.ask)

    def _drain(self, who: str) -> None:
        """Stop as by a signal, but never at once."""
        if not self._stop.is_set():
            self._on_stop(who)

    def _on_stop(self, name: str) -> None:
        if self._stop.is_set():
            _log.warning("%s again: stopping now", name)
            self._hurry.set()
            self._fleet.hurry()
            return
        seconds = self._config.server.drain_seconds
        _log.info("%s: finishing requests for at most %.0f s", name, seconds)
        self._stop_reason = name
        self._stop.set()


def run(config: Config, options: Options) -> int:
    """Run a daemon on a fresh event loop; returns the exit status.

    Raises:
        StartError: it cannot start.
    """

    async def main() -> int:
        return await Daemon(config, options).run()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())
