"""Main loop of the engine process: read commands, run steps, send events."""

from __future__ import annotations

import gc
import logging
import os
import threading
import time

from gatewayd_engine.core.build import BuiltEngine, assemble
from gatewayd_engine.core.engine_core import EngineCore
from gatewayd_engine.process.config import EngineConfig
from gatewayd_engine.process.frames import EngineSocket
from gatewayd_engine.process.huge_pages import use_huge_pages
from gatewayd_engine.process.inspect_messages import Browse, Inspect
from gatewayd_engine.process.log_context import about
from gatewayd_engine.process.messages import (
    ERROR,
    PROTOCOL_VERSION,
    Abort,
    Bump,
    Command,
    EngineReady,
    Evict,
    Evicted,
    Fatal,
    Finished,
    HoldRequest,
    Loading,
    Pinned,
    PinPrefix,
    Release,
    SetLimits,
    SetQuotas,
    Shutdown,
    StepOutput,
    StrategyReport,
    Submit,
    SwapStrategy,
)
from gatewayd_engine.process.plugin_faults import RequestRejected
from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.host.marker import Marker
from gatewayd_hooks.host.watchdog import Watchdog

_HEARTBEAT_SECONDS = 0.5
"""Interval at which an idle engine sends a heartbeat."""
# Shortest interval between two reports of loading progress.
_PROGRESS_SECONDS = 0.1
# Pauses after a step that computed nothing, and while a thread opens a strategy.
_IDLE_SECONDS = 0.001
_OPENING_SECONDS = 0.005
_REPORT_SECONDS = 1.0
_STOP_SECONDS = 1.0
"""Grace period at shutdown for a strategy that is still being opened."""

_log = logging.getLogger(__name__)


def serve(stream: EngineSocket, config: EngineConfig) -> int:
    """Load the model and serve until shut down.

    Returns:
        The exit status: 0 after ``Shutdown`` or when the daemon has exited, 1 when the model
        cannot be served.
    """
    began = time.monotonic()
    try:
        engine = _load(stream, config)
    # The daemon has exited: there is no peer to report to.
    except EOFError:
        return 0
    except Exception as error:  # noqa: BLE001 - any failure must be reported to the daemon
        stream.send(Fatal(type(error).__name__, str(error)))
        return 1
    try:
        stream.send(
            EngineReady(PROTOCOL_VERSION, os.getpid(), engine.info, time.monotonic() - began)
        )
        # Objects made while loading live as long as the process: never scan them again.
        gc.collect()
        gc.freeze()
        # Beside the loop: with large weights it takes a while, and no request needs it.
        threading.Thread(target=use_huge_pages, name="huge-pages", daemon=True).start()
        plugin_times = engine.core.strategies.plugin_times
        watchdog = Watchdog(plugin_times, config.strategy_hang_seconds, config.load_seconds)
        _loop(stream, engine.core, watchdog)
    except EOFError:
        return 0
    except Exception as error:
        # The daemon starts another engine; this message says why.
        whose = engine.core.strategies.to_quarantine(error)
        stream.send(Fatal(type(error).__name__, str(error), whose))
        raise
    finally:
        engine.core.swaps.close(_STOP_SECONDS)
        engine.core.strategies.close()
    return 0


def _load(stream: EngineSocket, config: EngineConfig) -> BuiltEngine:
    last_sent = 0.0

    def progress(stage: str, fraction: float) -> None:
        nonlocal last_sent
        now = time.monotonic()
        if now - last_sent >= _PROGRESS_SECONDS or fraction >= 1.0:
            last_sent = now
            stream.send(Loading(stage, fraction))

    telltale = Marker.attached(config.marker).loading
    return assemble(config, PluginHost(Catalog.installed(), telltale), progress)


def _loop(stream: EngineSocket, core: EngineCore, watchdog: Watchdog) -> None:
    """Serve until ``Shutdown``; raises EOFError when the daemon has exited."""
    last_sent = reported = 0.0
    while True:
        # Before the commands, which call strategies as well as the step does.
        watchdog.arm()
        refused: list[Finished] = []
        for command in stream.read_available():
            if isinstance(command, Shutdown):
                # Saving may take longer than a call within a step; it has a limit of its own.
                watchdog.disarm()
                if command.seconds > 0:
                    core.save(command.seconds)
                return
            if isinstance(command, PinPrefix):
                stream.send(_pin(core, command))
            elif isinstance(command, Evict):
                stream.send(_evict(core, command))
            elif isinstance(command, Inspect | Browse):
                stream.send(core.inspect(command))
            else:
                refused += _handle(core, command)
        # With work the next step reports ended sequences; without work there is no next step.
        if refused or (core.has_ended and not core.has_work):
            ended = core.drain_ended()._asdict()
            stream.send(StepOutput(stats=core.stats, finished=refused, **ended))
        # Between two steps, when no strategy is being called.
        for answer in core.swaps.complete_ready():
            stream.send(answer)
        has_computed, may_step = False, core.has_work and not core.swaps.holds
        if may_step:
            output = core.step()
            stream.send(output)
            last_sent = time.monotonic()
            # A step in flight counts, because its results are to be collected without a pause.
            has_computed = output.stats.step_tokens > 0 or core.is_computing
        now = time.monotonic()
        if now - reported >= _REPORT_SECONDS:
            reported = now
            stream.send(StrategyReport(core.strategies.report()))
        if has_computed:
            continue
        # An idle engine calls no strategy, and the timer would only wake it up.
        watchdog.disarm()
        # Poll a scheduler that granted nothing, or a thread that opens a strategy, after a short
        # pause instead of in a busy loop.
        patience = _HEARTBEAT_SECONDS
        if may_step or core.swaps.is_busy:
            patience = _IDLE_SECONDS if may_step else _OPENING_SECONDS
        stream.wait_readable(patience)
        if time.monotonic() - last_sent >= _HEARTBEAT_SECONDS:
            last_sent = time.monotonic()
            stream.send(StepOutput(stats=core.stats))


def _pin(core: EngineCore, command: PinPrefix) -> Pinned:
    try:
        return Pinned(command.number, core.pin(command))
    except RequestRejected as refusal:
        return Pinned(command.number, error=str(refusal))


def _evict(core: EngineCore, command: Evict) -> Evicted:
    try:
        return core.operator.evict(command)
    except RequestRejected as refusal:
        return Evicted(command.number, error=str(refusal))


def _handle(core: EngineCore, command: Command) -> list[Finished]:
    match command:
        case Submit():
            try:
                with about((command.request_id, command.x_request_id)):
                    core.submit(command)
                    _log.debug("request submitted with sequences %s", command.sequences)
            except RequestRejected as refusal:
                error = (refusal.code, str(refusal))
                core.record_refused(command.sequences)
                return [Finished(i, ERROR, error=error) for i in command.sequences]
        case Abort():
            core.abort(command.sequences)
        case SwapStrategy():
            core.swaps.start(command)
        case SetLimits():
            core.swaps.limit(command)
        case HoldRequest():
            core.operator.pause_sequences(command.sequences)
        case Release():
            core.resume(command.sequences)
        case Bump():
            core.operator.bump(command)
        case SetQuotas():
            return core.set_quotas(command.quotas)
        case Shutdown() | PinPrefix() | Evict() | Inspect() | Browse():
            pass
    return []
