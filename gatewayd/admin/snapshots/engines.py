"""Engines of a snapshot, from the fleet's status."""

from __future__ import annotations

from collections.abc import Iterable

from gatewayd.engines.api import ReplicaState, ReplicaStatus
from gatewayd.wire.snapshot import EngineView, StrategyView
from gatewayd_engine.process.inspect_messages import MachineStats
from gatewayd_engine.process.messages import ModelInfo, StrategyRow

# An engine that is still loading is shown with zeros.
_UNKNOWN = ModelInfo("", 0, "", "", 0, 0, [], 0, 0, 0, 0)
_UNSAID = MachineStats()
_OVER = (ReplicaState.FAILED, ReplicaState.STOPPED)


def engine_view(replica: ReplicaStatus) -> EngineView:
    """Build the view of a replica."""
    model, stats = replica.model or _UNKNOWN, replica.stats
    machine = replica.machine or _UNSAID
    return EngineView(
        index=replica.index,
        state=replica.state.value,
        detail=replica.detail,
        pid=replica.pid,
        uptime_seconds=replica.uptime_seconds,
        restarts=replica.restarts,
        device=model.device,
        dtype=model.dtype,
        num_parameters=model.num_parameters,
        weight_bytes=model.weight_bytes,
        load_seconds=replica.load_seconds,
        max_model_len=model.max_model_len,
        max_running=model.max_running,
        max_batch_tokens=model.max_batch_tokens,
        page_size=model.page_size,
        num_pages=model.num_pages,
        free_pages=stats.free_pages,
        cached_pages=stats.cached_pages,
        held_pages=stats.held_pages,
        page_bytes=model.page_bytes,
        num_running=stats.num_running,
        num_waiting=stats.num_waiting,
        steps=stats.step,
        computed_tokens=stats.computed_tokens,
        preemptions=stats.preemptions,
        faults=stats.faults,
        prefix_queries=stats.prefix_queries,
        prefix_hits=stats.prefix_hits,
        draft_tokens=stats.draft_tokens,
        accepted_tokens=stats.accepted_tokens,
        step_tokens=stats.step_tokens,
        step_seconds=stats.step_seconds,
        resident_bytes=machine.resident_bytes,
        cpu_cores=machine.cpu_cores,
        device_used=machine.device_used,
        device_total=machine.device_total,
        device_utilization=machine.device_utilization,
    )


def state_of(replicas: Iterable[ReplicaStatus], *, is_draining: bool, condition: str) -> str:
    """The state of the daemon, in one word."""
    if is_draining:
        return "draining"
    # Only a fleet that is not ready needs a look at its replicas.
    if condition != "not_ready":
        return condition
    return "failed" if all(replica.state in _OVER for replica in replicas) else "starting"


def strategy_view(engine: str, row: StrategyRow) -> StrategyView:
    """Build the view of a strategy and its cost."""
    return StrategyView(
        engine=engine,
        kind=row.kind,
        name=row.name,
        state=row.state,
        faults=row.faults,
        calls=row.calls,
        mean_us=1e6 * row.seconds / row.calls if row.calls else 0.0,
        longest_us=1e6 * row.longest,
    )
