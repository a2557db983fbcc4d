"""Supervisor of one engine process: start, heartbeat, shutdown and restart.

It knows nothing about requests; its owner is notified of the engine's events and of its loss. Loss
is detected at the end of the stream (milliseconds), at the process's exit (a tick), or after too
long a silence.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from gatewayd.engines.api import ReplicaState, ReplicaStatus
from gatewayd.engines.replicas.engine_process import (
    FencedProcess,
    ProcessExit,
    describe_exit,
    end_process,
    has_crashed,
    start,
)
from gatewayd.engines.replicas.heartbeat import Heartbeat
from gatewayd.engines.replicas.replica_owner import ReplicaOwner
from gatewayd.engines.replicas.restart_backoff import RestartBackoff
from gatewayd.engines.replicas.setup import EngineSetup, Launch
from gatewayd.tracing.strategy_of_cause import strategy_of
from gatewayd_engine.process.client import EngineClient
from gatewayd_engine.process.config import EngineConfig
from gatewayd_engine.process.engine_stats import EngineStats
from gatewayd_engine.process.frames import FrameError
from gatewayd_engine.process.inspect_messages import Looked
from gatewayd_engine.process.messages import (
    PROTOCOL_VERSION,
    Abort,
    Command,
    EngineReady,
    Event,
    Evicted,
    Fatal,
    Loading,
    ModelInfo,
    Pinned,
    SetLimits,
    Shutdown,
    StepOutput,
    StrategyReport,
    StrategyRow,
    Swapped,
    TenantQuota,
)
from gatewayd_hooks.execution import EngineCommand

_log = logging.getLogger(__name__)

_TICK_SECONDS = 0.1
_ASLEEP = "asleep: the next request loads it"


class Replica:
    """Supervisor of one engine process; see the module."""

    def __init__(self, index: int, launch: Launch, owner: ReplicaOwner[Replica]) -> None:
        self.index = index
        self.state = ReplicaState.STARTING
        self.detail = "not started"
        self.model: ModelInfo | None = None
        self.stats = EngineStats()
        self.restarts = 0
        self.load_seconds = 0.0
        self.rows: list[StrategyRow] = []
        self.setup = EngineSetup(launch.config, index)
        self._launch = launch
        self._owner = owner
        self._process: FencedProcess | None = None
        self._client: EngineClient | None = None
        self._loss: asyncio.Future[str] | None = None
        self.heartbeat = Heartbeat(launch.patience)
        self._is_final = False  # the engine has reported that a restart will not help
        self._is_stopping = False
        self._is_wanted = True
        self._is_unloading = False  # stays set if one is wanted again before it has ended
        self._wanted_changed = asyncio.Event()  # the wanted state has changed
        self._is_gone = asyncio.Event()  # unloaded, and its memory is freed
        self._save_seconds, self._why_unloaded = 0.0, _ASLEEP

    @property
    def label(self) -> str:
        """Its name in log lines; with the model's if the daemon serves several."""
        return self.setup.label

    @property
    def can_serve(self) -> bool:
        """Whether a request may be sent to it."""
        return self.state is ReplicaState.READY

    @property
    def is_over(self) -> bool:
        """Whether it will never serve again."""
        return self.state in (ReplicaState.FAILED, ReplicaState.STOPPED)

    @property
    def is_responsive(self) -> bool:
        """Whether it serves and has sent a message recently."""
        return self.can_serve and not self.heartbeat.is_doubtful(self.model)

    def strategy_of(self, cause: int) -> str:
        """The strategy responsible for a cause of waiting; empty for none."""
        return strategy_of(self.setup.config, cause)

    def status(self) -> ReplicaStatus:
        """A snapshot of its status."""
        return ReplicaStatus(
            index=self.index,
            state=self.state,
            pid=self._process.pid if self._process is not None else None,
            uptime_seconds=self.heartbeat.uptime if self.can_serve else 0.0,
            restarts=self.restarts,
            detail=self.detail,
            model=self.model,
            stats=self.stats,
            strategies=self.rows,
            load_seconds=self.load_seconds,
        )

    def send(self, command: Command) -> None:
        """Send a command to the engine; discarded if there is none.

        Raises:
            FrameError: it exceeds the size of a frame.
        """
        if self._client is not None:
            self._client.send(command)

    def abort(self, sequences: list[int]) -> None:
        """Abort sequences at the engine."""
        self.send(Abort(sequences))

    def adopt(self, config: EngineConfig, *, is_known: bool = False) -> None:
        """Change the strategies of the present engine and of later ones.

        Args:
            config: configuration with the new strategies.
            is_known: whether the present engine has them already; if not, it is sent the change
                without waiting for an answer.
        """
        if is_known:
            self.setup.mark_applied(config)
            return
        self.setup.config = config
        if self.can_serve:
            self._send_updates()

    def set_limits(self, limits: SetLimits) -> None:
        """Change the limits of the present engine and of later ones."""
        self.setup.set_limits(limits)
        if self.can_serve:
            self._send_updates()

    def set_quotas(self, quotas: list[TenantQuota]) -> None:
        """Set tenants' KV-cache quotas of the present engine and of later ones."""
        self.setup.set_quotas(quotas)
        if self.can_serve:
            self._send_updates()

    def _send_updates(self) -> None:
        for command in self.setup.pending_updates():
            self.send(command)

    async def run(self) -> None:
        """Keep an engine running until ``stop``, or until too many starts have failed."""
        try:
            await self._run()
        finally:
            # `unload` must not wait for a supervisor that has ended.
            self._is_gone.set()
            self.setup.close()

    async def _run(self) -> None:
        backoff = RestartBackoff()
        while not self._is_stopping:
            if self._is_unloading:
                await self._stay_unloaded()
                # A load by an operator is a new beginning: earlier failures do not count.
                backoff = RestartBackoff()
                continue
            reason, uptime = await self._run_engine()
            # A requested end is no loss.
            if self._is_stopping or self._is_unloading:
                continue
            self.restarts += 1
            backoff.record(uptime)
            self.detail = reason
            if backoff.are_too_many or self._is_final:
                _log.error("%s failed: %s", self.label, reason)
                self.state = ReplicaState.FAILED
                return
            self.state = ReplicaState.RESTARTING
            pause = backoff.pause()
            _log.warning("%s: %s; restarting in %.1f s", self.label, reason, pause)
            await self._sleep(pause)
        self.state = ReplicaState.STOPPED
        self.detail = "stopped"

    def stop(self, save_seconds: float) -> None:
        """Ask the engine to stop; ``run`` returns after at most this time for persisting caches."""
        self._save_seconds = save_seconds
        self._is_stopping = True
        self._wanted_changed.set()
        self._report_loss("stopped")

    async def unload(self, save_seconds: float, why: str = _ASLEEP) -> None:
        """Stop the engine until ``load``; returns when its memory is free.

        Args:
            save_seconds: time to persist its prefix cache.
            why: shown while it is unloaded.
        """
        if self.is_over:
            return
        if not self._is_wanted:
            await self._is_gone.wait()  # of an earlier call, which may not have ended
            return
        self._save_seconds, self._why_unloaded = save_seconds, why
        self._is_wanted, self._is_unloading = False, True
        self._is_gone.clear()
        self._wanted_changed.set()
        # Notifies the owner and sets the state of a loss, which is replaced below.
        self._report_loss("unloaded")
        if not self.is_over:
            self.state, self.detail = ReplicaState.UNLOADED, "stopping its engine"
        await self._is_gone.wait()

    def start_unloaded(self) -> None:
        """Begin without an engine, until ``load``; called before ``run``."""
        self._is_wanted, self._is_unloading = False, True
        self._why_unloaded = _ASLEEP

    def load(self) -> None:
        """Start the engine again after ``unload``."""
        if not self._is_wanted:
            self._is_wanted = True
            self._wanted_changed.set()

    async def _stay_unloaded(self) -> None:
        """Stay without an engine until ``load`` or ``stop``."""
        self.state, self.detail = ReplicaState.UNLOADED, self._why_unloaded
        self.stats = EngineStats()
        self._is_gone.set()
        while not (self._is_wanted or self._is_stopping):
            self._wanted_changed.clear()
            await self._wanted_changed.wait()
            self._is_gone.set()  # loaded and unloaded in the meantime: there is still no engine
        self._is_unloading = False
        self.state = ReplicaState.STARTING

    def stop_saving(self) -> None:
        """Stop the persisting of the prefix cache by an engine that is ending."""
        if self._save_seconds and self._process is not None:
            self._process.terminate()

    async def _run_engine(self) -> tuple[str, float | None]:
        """Run one engine; return why it ended, and for how long it served, if ever."""
        launch = self._launch
        self.detail, self.stats = "starting", EngineStats()
        # From here on silence is measured, and `stop` and `unload` can end this engine.
        self.heartbeat.reset()
        loss = self._loss = asyncio.get_running_loop().create_future()
        self.rows = []
        config = self.setup.start_config()
        try:
            # In this thread: the kernel signals an engine when the thread that started it ends.
            process = start(launch.executor, EngineCommand(launch.command, launch.env, self.index))
        except Exception as error:  # noqa: BLE001 - an executor may be a plugin's
            return f"could not be started: {error}", None
        self._process = process
        try:
            client = self._client = await EngineClient.connect(
                process.socket, self._on_event, self._on_stream_end
            )
        except Exception as error:  # noqa: BLE001 - the socket is the executor's, of any kind
            process.socket.close()
            await end_process(process, launch.patience, ProcessExit.LOADING)
            self._process = None
            return f"could not be connected: {error}", None
        client.send(config)
        is_hung = False
        # Supervise: end of the stream, exit of the process, silence.
        while not loss.done():
            await asyncio.wait([loss], timeout=_TICK_SECONDS)
            if loss.done():
                break
            if process.poll() is not None:
                # Its last messages may still be in the socket, followed by the end of the stream.
                await asyncio.wait([loss], timeout=_TICK_SECONDS)
                self._report_loss("ended")
            if self.heartbeat.is_gone(self.model):
                is_hung = True
                self._report_loss(f"sent no heartbeat for {self.heartbeat.silence:.0f} s")
        # Before the process is ended, which takes up to several seconds.
        uptime = self.heartbeat.uptime if self.heartbeat.has_served else None
        if self._ends:
            client.send(Shutdown(self._save_seconds))
        reason = loss.result()
        will = self._exit_state(is_hung=is_hung)
        status = await end_process(process, launch.patience, will, self._save_seconds)
        # Not earlier: closing discards commands that have not been sent, such as `Shutdown`.
        client.close()
        self._process = self._client = None
        how = "" if is_hung or self._is_final else f" ({describe_exit(status)})"
        if is_hung or has_crashed(status):
            whose, is_unloadable = self.setup.quarantine_crashed()
            reason += whose
            # No engine has started with it yet: the configuration is wrong.
            self._is_final |= is_unloadable and self.model is None
        return reason + how, uptime

    def _on_event(self, event: Event) -> None:
        if self._loss is None or self._loss.done():
            return  # last messages of an engine that is being stopped
        self.heartbeat.record_message()
        if isinstance(event, StepOutput):
            self.stats = event.stats
            self.heartbeat.record_step(event.stats)
            try:
                self._owner.on_step(self, event)
            except FrameError as error:
                self._report_loss(f"sent an invalid frame: {error}")
        elif isinstance(event, Loading):
            self.detail = f"{event.stage} {event.fraction:.0%}"
        elif isinstance(event, EngineReady):
            self._on_ready(event)
        elif isinstance(event, StrategyReport):
            self.rows = event.rows
        elif isinstance(event, Swapped):
            if event.error:
                _log.error("%s rejected a strategy: %s", self.label, event.error)
            self._owner.on_swapped(self, event)
        elif isinstance(event, Pinned):
            self._owner.on_pinned(self, event)
        elif isinstance(event, Evicted):
            self._owner.on_evicted(self, event)
        elif isinstance(event, Looked):
            self._owner.on_inspected(self, event)
        else:
            self._on_fatal(event)

    def _on_ready(self, event: EngineReady) -> None:
        if event.version != PROTOCOL_VERSION:
            # The next start would run the same program.
            self._is_final = True
            self._report_loss(
                f"uses version {event.version} of the protocol; this daemon uses {PROTOCOL_VERSION}"
            )
            return
        self.model, self.load_seconds = event.model, event.load_seconds
        self.state = ReplicaState.READY
        self.detail = f"loaded in {event.load_seconds:.1f} s"
        self.heartbeat.record_ready()
        _log.info("%s: ready, pid %d, %s", self.label, event.pid, self.detail)
        # Before the first request, which must run with the present strategies and limits.
        self._send_updates()
        self._owner.on_ready(self)

    def _on_fatal(self, event: Fatal) -> None:
        # An engine that cannot start fails in the same way at the next start, unless one has
        # started before: then the missing resource (memory, a device) may become available again.
        self._is_final = self.model is None
        if event.strategy:
            self.setup.quarantine(*event.strategy)
        self._report_loss(event.message)

    def _on_stream_end(self, error: Exception | None) -> None:
        self._report_loss(
            "the connection ended" if error is None else f"the connection broke: {error}"
        )

    def _report_loss(self, reason: str) -> None:
        """Report the loss of the engine to the owner; ``_run_engine`` then ends the process."""
        if self._loss is None or self._loss.done():
            return
        # Result and state first: the owner dispatches the requests again, and not to this replica.
        self._loss.set_result(reason)
        if self.can_serve:
            is_stopping = self._is_stopping
            self.state = ReplicaState.STOPPED if is_stopping else ReplicaState.RESTARTING
            self._owner.on_lost(self, reason)

    def _exit_state(self, *, is_hung: bool) -> ProcessExit:
        if is_hung:
            return ProcessExit.HUNG
        if not self._ends:
            return ProcessExit.LOST
        # A loading engine reads no commands.
        return ProcessExit.ASKED if self.heartbeat.has_served else ProcessExit.LOADING

    async def _sleep(self, seconds: float) -> None:
        """Wait before the next start, unless no engine is wanted any more."""
        # A change before the pause must not end it.
        self._wanted_changed.clear()
        if not self._ends:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wanted_changed.wait(), seconds)

    @property
    def _ends(self) -> bool:
        """Whether the present engine must end."""
        return self._is_stopping or self._is_unloading
