"""Console state: the last snapshot, a short history of figures, and the last log lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

from gatewayd.wire.snapshot import DaemonView, LogView, Snapshot
from gatewayd_tui.machine_usage import MachineUsage, usage_of

MOST_POINTS = 120
MOST_LOGS = 1000
RATE_SECONDS = 5.0
"""Averaging period of a rate."""
CLOCK_SECONDS = 5.0
"""Tolerated clock adjustment while a daemon runs; a larger one looks like another process."""


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """Figures of one snapshot.

    Attributes:
        unix: time of the snapshot.
        counted: time at which the totals of ``/metrics`` were collected: those of requests, errors,
            tokens and evictions, and ``good``.
        requests, errors, prompt_tokens, generated_tokens: totals; errors are 5xx answers.
        prefix_queries, prefix_hits: totals, in tokens.
        running, waiting: sequences and requests now.
        evictions: cached pages evicted for other requests, total.
        good: requests that met all SLOs of their class, totals by class.
        kv_share: share of the KV pages in use, 0 to 1.
        usage: resource usage of the engines.
        p50, p95, p99: milliseconds by ``ttft``, ``tpot``, ``e2e``; None without requests.
    """

    unix: float
    counted: float
    requests: float
    errors: float
    prompt_tokens: float
    generated_tokens: float
    prefix_queries: float
    prefix_hits: float
    evictions: float
    good: dict[str, float]
    running: int
    waiting: int
    kv_share: float
    usage: MachineUsage
    p50: dict[str, float | None]
    p95: dict[str, float | None]
    p99: dict[str, float | None]


@dataclass(frozen=True, slots=True)
class ConsoleState:
    """Data for all screens.

    Attributes:
        snapshot: the last one; None before the first.
        history: of the same daemon process, the oldest first.
        logs: the last lines, the oldest first.
        lost: why the connection is lost; None while it is not.
    """

    snapshot: Snapshot | None = None
    history: tuple[HistoryPoint, ...] = ()
    logs: tuple[LogView, ...] = ()
    lost: str | None = "no snapshot received yet"


def advance(state: ConsoleState, snapshot: Snapshot) -> ConsoleState:
    """Return the state after a snapshot."""
    before = state.snapshot
    is_same = before is not None and is_same_run(before, snapshot)
    # Totals of another process begin at 0, those of another model are others: rates across both
    # would be wrong. The log is the daemon's.
    is_same_model = before is not None and before.daemon.model == snapshot.daemon.model
    history = state.history if is_same and is_same_model else ()
    logs = state.logs if is_same else ()
    # Consecutive snapshots repeat log lines.
    last = logs[-1].number if logs else -1
    fresh = tuple(line for line in snapshot.logs if line.number > last)
    return ConsoleState(
        snapshot=snapshot,
        history=(*history, point(snapshot))[-MOST_POINTS:],
        logs=(*logs, *fresh)[-MOST_LOGS:],
        lost=None,
    )


def is_same_run(before: Snapshot, after: Snapshot) -> bool:
    """Whether two snapshots are of the same process; in a container every daemon has pid 1."""
    begins = [each.unix - each.daemon.uptime_seconds for each in (before, after)]
    return (
        before.daemon.pid == after.daemon.pid
        # Each model's snapshots have numbers of their own.
        and (before.number <= after.number or before.daemon.model != after.daemon.model)
        and before.daemon.uptime_seconds <= after.daemon.uptime_seconds
        and abs(begins[1] - begins[0]) <= CLOCK_SECONDS
    )


def model_label(daemon: DaemonView) -> str:
    """Return the model that a snapshot is about; where there are several, with their number."""
    if len(daemon.models) < 2:
        return daemon.model
    return f"{daemon.model}, of {len(daemon.models)} models"


def mark_lost(state: ConsoleState, why: str | None) -> ConsoleState:
    """Return the state with the reason of a lost connection, or without one."""
    return replace(state, lost=why)


def point(snapshot: Snapshot) -> HistoryPoint:
    """Extract the figures of a snapshot for the history."""
    samples, engines = snapshot.samples, snapshot.engines
    pages = sum(e.num_pages for e in engines)
    return HistoryPoint(
        unix=snapshot.unix,
        # Totals may be older than the snapshot: they are collected once a second.
        counted=snapshot.samples_unix or snapshot.unix,
        requests=total(samples, "vllm:request_success_total"),
        errors=total(samples, "gatewayd_http_requests_total", 'status="5'),
        prompt_tokens=total(samples, "vllm:prompt_tokens_total"),
        generated_tokens=total(samples, "vllm:generation_tokens_total"),
        prefix_queries=float(sum(e.prefix_queries for e in engines)),
        prefix_hits=float(sum(e.prefix_hits for e in engines)),
        evictions=total(samples, "gatewayd_kv_evictions_total"),
        good={row.priority: float(row.good) for row in snapshot.slo if row.slo == "all"},
        running=sum(e.num_running for e in engines),
        waiting=len(snapshot.waiting) + snapshot.more_waiting,
        kv_share=sum(e.held_pages for e in engines) / pages if pages else 0.0,
        usage=usage_of(engines),
        p50={one.name: one.p50 for one in snapshot.latencies},
        p95={one.name: one.p95 for one in snapshot.latencies},
        p99={one.name: one.p99 for one in snapshot.latencies},
    )


def total(samples: dict[str, float], name: str, label: str = "") -> float:
    """Sum a metric over all labels, or over samples that contain a label."""
    return sum(
        value
        for key, value in samples.items()
        if key.partition("{")[0] == name and (not label or label in key)
    )


def rate(history: tuple[HistoryPoint, ...], of: Callable[[HistoryPoint], float]) -> float:
    """Return the growth per second of a total, over the last ``RATE_SECONDS``."""
    if not history:
        return 0.0
    last = history[-1]
    # Rates go by the time of collection, not by that of the snapshot.
    first = next(p for p in history if p.counted >= last.counted - RATE_SECONDS)
    if first.counted == last.counted:  # the one before, however long ago
        first = next((p for p in reversed(history) if p.counted < last.counted), last)
    return _growth(first, last, of)


def rates(history: tuple[HistoryPoint, ...], of: Callable[[HistoryPoint], float]) -> list[float]:
    """Return growth rates between consecutive points; the previous one if nothing was collected."""
    found: list[float] = []
    for first, last in pairwise(history):
        is_news = last.counted > first.counted or not found
        found.append(_growth(first, last, of) if is_news else found[-1])
    return found


def share(history: tuple[HistoryPoint, ...]) -> float | None:
    """Return the prefix cache hit rate of the history; None without lookups."""
    if len(history) < 2:
        return None
    first, last = history[0], history[-1]
    asked = last.prefix_queries - first.prefix_queries
    return (last.prefix_hits - first.prefix_hits) / asked if asked > 0 else None


def or_zero(values: Iterable[float | None]) -> list[float]:
    """Replace unknown values by 0."""
    return [0.0 if value is None else value for value in values]


def _growth(first: HistoryPoint, last: HistoryPoint, of: Callable[[HistoryPoint], float]) -> float:
    seconds = last.counted - first.counted
    return max(0.0, of(last) - of(first)) / seconds if seconds > 0 else 0.0
