"""One engine process, kept alive: start, watch, bury, start again.

Nothing about requests is known here; the owner is told what the engine says and when it is
lost. Loss is seen at the end of the stream (milliseconds), at the process's exit (a tick), or
when the engine has been silent for too long.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from gatewayd.engines.api import ReplicaState, ReplicaStatus
from gatewayd.engines.replicas.engine_process import (
    FencedProcess,
    ProcessExit,
    bury,
    ending,
    has_crashed,
    start,
)
from gatewayd.engines.replicas.heartbeat import Pulse
from gatewayd.engines.replicas.replica_owner import ReplicaOwner
from gatewayd.engines.replicas.restart_backoff import Setbacks
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


class Replica:
    """See the module."""

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
        self.pulse = Pulse(launch.patience)
        self._is_final = False  # the engine has said that no restart will help
        self._is_stopping = False
        self._is_wanted = True
        self._is_unloading = False  # also when one is wanted again before it has ended
        self._stirred = asyncio.Event()  # what is wanted has changed
        self._is_gone = asyncio.Event()  # unloaded, and its memory is free
        self._save_seconds = 0.0

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
        """Whether it serves and has spoken lately."""
        return self.can_serve and not self.pulse.is_doubtful(self.model)

    def strategy_of(self, cause: int) -> str:
        """The strategy that a cause is due to here; empty for what none decides."""
        return strategy_of(self.setup.config, cause)

    def status(self) -> ReplicaStatus:
        """A snapshot."""
        return ReplicaStatus(
            index=self.index,
            state=self.state,
            pid=self._process.pid if self._process is not None else None,
            uptime_seconds=self.pulse.uptime if self.can_serve else 0.0,
            restarts=self.restarts,
            detail=self.detail,
            model=self.model,
            stats=self.stats,
            strategies=self.rows,
            load_seconds=self.load_seconds,
        )

    def send(self, command: Command) -> None:
        """Send a command to the engine; lost when there is none.

        Raises:
            FrameError: it is too large.
        """
        if self._client is not None:
            self._client.send(command)

    def abort(self, sequences: list[int]) -> None:
        """Make the engine forget sequences."""
        self.send(Abort(sequences))

    def adopt(self, config: EngineConfig, *, is_known: bool = False) -> None:
        """Serve with other strategies from now on, and whenever an engine starts.

        Args:
            config: with these.
            is_known: the engine that serves has them already; if not, it is told, and nobody
                waits for its answer.
        """
        if is_known:
            self.setup.settle(config)
            return
        self.setup.config = config
        if self.can_serve:
            self._tell_news()

    def limit(self, limits: SetLimits) -> None:
        """Change limits, now and whenever an engine starts."""
        self.setup.limit(limits)
        if self.can_serve:
            self._tell_news()

    def bound(self, quotas: list[TenantQuota]) -> None:
        """Bound tenants, now and whenever an engine starts."""
        self.setup.bound(quotas)
        if self.can_serve:
            self._tell_news()

    def _tell_news(self) -> None:
        for command in self.setup.news():
            self.send(command)

    async def run(self) -> None:
        """Keep an engine running until ``stop``, or until starting has failed too often."""
        try:
            await self._run()
        finally:
            self._is_gone.set()
            self.setup.close()

    async def _run(self) -> None:
        setbacks = Setbacks()
        while not self._is_stopping:
            if self._is_unloading:
                await self._rest()
                setbacks = Setbacks()
                continue
            reason, uptime = await self._live()
            if self._is_stopping or self._is_unloading:
                continue
            self.restarts += 1
            setbacks.note(uptime)
            self.detail = reason
            if setbacks.are_too_many or self._is_final:
                _log.error("engine %d failed: %s", self.index, reason)
                self.state = ReplicaState.FAILED
                return
            self.state = ReplicaState.RESTARTING
            pause = setbacks.pause()
            _log.warning("engine %d: %s; restarting in %.1f s", self.index, reason, pause)
            await self._sleep(pause)
        self.state = ReplicaState.STOPPED
        self.detail = "stopped"

    def stop(self, save_seconds: float) -> None:
        """Ask the engine to end; ``run`` returns when it has saved for at most so long."""
        self._save_seconds = save_seconds
        self._is_stopping = True
        self._stirred.set()
        self._lose("stopped")

    async def unload(self, save_seconds: float) -> None:
        """End the engine, and start none until ``load``; returns when its memory is free.

        Args:
            save_seconds: for which it may write what a later one finds again.
        """
        if not self._is_wanted or self.is_over:
            return
        self._save_seconds = save_seconds
        self._is_wanted, self._is_unloading = False, True
        self._is_gone.clear()
        self._stirred.set()
        self._lose("unloaded")
        if not self.is_over:
            self.state, self.detail = ReplicaState.UNLOADED, "its engine ends"
        await self._is_gone.wait()

    def load(self) -> None:
        """Start an engine again."""
        if not self._is_wanted:
            self._is_wanted = True
            self._stirred.set()

    async def _rest(self) -> None:
        """Have no engine, until one is wanted again or there is to be none."""
        self.state, self.detail = ReplicaState.UNLOADED, "unloaded by an operator"
        self.stats = EngineStats()
        self._is_gone.set()
        while not (self._is_wanted or self._is_stopping):
            self._stirred.clear()
            await self._stirred.wait()
            self._is_gone.set()  # loaded and unloaded again, there is still none
        self._is_unloading = False
        self.state = ReplicaState.STARTING

    def hurry(self) -> None:
        """Let an engine that ends write no longer."""
        if self._save_seconds and self._process is not None:
            self._process.terminate()

    async def _live(self) -> tuple[str, float | None]:
        """One engine's life: returns why it ended, and for how long it served, if ever."""
        launch = self._launch
        self.detail, self.stats = "starting", EngineStats()
        self.pulse.begin()
        loss = self._loss = asyncio.get_running_loop().create_future()
        self.rows = []
        config = self.setup.begin()
        try:
            # In this thread: the kernel ends an engine with the thread that started it.
            process = start(launch.executor, EngineCommand(launch.command, launch.env, self.index))
        except Exception as error:  # noqa: BLE001 - an executor may be a plugin's
            return f"could not be started: {error}", None
        self._process = process
        client = self._client = await EngineClient.connect(
            process.socket, self._on_event, self._on_stream_end
        )
        client.send(config)
        is_hung = False
        while not loss.done():
            await asyncio.wait([loss], timeout=_TICK_SECONDS)
            if loss.done():
                break
            if process.poll() is not None:
                # Its last words may still be in the socket; the stream's end follows them.
                await asyncio.wait([loss], timeout=_TICK_SECONDS)
                self._lose("ended")
            if self.pulse.is_gone(self.model):
                is_hung = True
                self._lose(f"sent no heartbeat for {self.pulse.silence:.0f} s")
        uptime = self.pulse.uptime if self.pulse.has_served else None
        if self._ends:
            client.send(Shutdown(self._save_seconds))
        reason = loss.result()
        will = self._last_will(is_hung=is_hung)
        status = await bury(process, launch.patience, will, self._save_seconds)
        client.close()
        self._process = self._client = None
        how = "" if is_hung or self._is_final else f" ({ending(status)})"
        if is_hung or has_crashed(status):
            whose, is_unloadable = self.setup.blame()
            reason += whose
            # None has started with it yet: the configuration is wrong.
            self._is_final |= is_unloadable and self.model is None
        return reason + how, uptime

    def _on_event(self, event: Event) -> None:
        if self._loss is None or self._loss.done():
            return  # the last words of an engine that is being buried
        self.pulse.hear()
        if isinstance(event, StepOutput):
            self.stats = event.stats
            self.pulse.step(event.stats)
            try:
                self._owner.on_step(self, event)
            except FrameError as error:
                self._lose(f"sent nonsense: {error}")
        elif isinstance(event, Loading):
            self.detail = f"{event.stage} {event.fraction:.0%}"
        elif isinstance(event, EngineReady):
            self._on_ready(event)
        elif isinstance(event, StrategyReport):
            self.rows = event.rows
        elif isinstance(event, Swapped):
            if event.error:
                _log.error("engine %d rejected a strategy: %s", self.index, event.error)
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
            self._is_final = True
            self._lose(
                f"speaks version {event.version} of the protocol; "
                f"this daemon speaks {PROTOCOL_VERSION}"
            )
            return
        self.model, self.load_seconds = event.model, event.load_seconds
        self.state = ReplicaState.READY
        self.detail = f"loaded in {event.load_seconds:.1f} s"
        self.pulse.ready()
        _log.info("engine %d: ready, pid %d, %s", self.index, event.pid, self.detail)
        self._tell_news()
        self._owner.on_ready(self)

    def _on_fatal(self, event: Fatal) -> None:
        # An engine that explains why it cannot start says the same the next time, unless one
        # has started before: then what it lacks (memory, a device) may come back.
        self._is_final = self.model is None
        if event.strategy:
            self.setup.quarantine(*event.strategy)
        self._lose(event.message)

    def _on_stream_end(self, error: Exception | None) -> None:
        self._lose("the connection ended" if error is None else f"the connection broke: {error}")

    def _lose(self, reason: str) -> None:
        """The engine serves no longer: tell the owner now, bury the process afterwards."""
        if self._loss is None or self._loss.done():
            return
        self._loss.set_result(reason)
        if self.can_serve:
            is_stopping = self._is_stopping
            self.state = ReplicaState.STOPPED if is_stopping else ReplicaState.RESTARTING
            self._owner.on_lost(self, reason)

    def _last_will(self, *, is_hung: bool) -> ProcessExit:
        if is_hung:
            return ProcessExit.HUNG
        if not self._ends:
            return ProcessExit.LOST
        # One that still loads reads no command.
        return ProcessExit.ASKED if self.pulse.has_served else ProcessExit.LOADING

    async def _sleep(self, seconds: float) -> None:
        """Wait before another start, unless none is wanted any more."""
        self._stirred.clear()
        if not self._ends:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stirred.wait(), seconds)

    @property
    def _ends(self) -> bool:
        """Whether the engine that there is must end."""
        return self._is_stopping or self._is_unloading
