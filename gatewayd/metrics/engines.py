"""Prometheus metrics of the engines, read from the fleet at each scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Protocol

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from gatewayd.engines.api import Fleet, ReplicaState, ReplicaStatus
from gatewayd.metrics.histograms import add_histogram
from gatewayd_engine.process.engine_stats import STEP_SIZES
from gatewayd_engine.process.messages import StrategyRow


class ControlFigures(Protocol):
    """Interface to strategy metrics: calls, time and swaps."""

    swaps: Counter[str]

    def costs(self) -> list[tuple[str, StrategyRow]]:
        """Return the calls and seconds of each strategy, with the engine's name."""


class FleetCollector(Collector):
    """Prometheus collector of engine metrics."""

    def __init__(
        self, fleet: Fleet, model_name: str, control: ControlFigures | None = None
    ) -> None:
        self._fleet = fleet
        self._model_name = model_name
        self._control = control

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics, with one sample per replica."""
        replicas = self._fleet.status()
        yield from self._gauges(replicas)
        yield from self._counters(replicas)
        yield from self._machine(replicas)
        yield from self._strategies()
        yield self._step_sizes(replicas)
        yield from self._states(replicas)

    def _gauges(self, replicas: Sequence[ReplicaStatus]) -> Iterator[Metric]:
        running = self._gauge("vllm:num_requests_running", "Sequences in the running batch.")
        waiting = self._gauge("vllm:num_requests_waiting", "Waiting sequences.")
        reasons = self._gauge(
            "vllm:num_requests_waiting_by_reason",
            "Waiting sequences by reason: batch or KV capacity, deferred, held, no engine.",
            "reason",
        )
        usage = self._gauge(
            "vllm:kv_cache_usage_perc", "KV-cache usage by running sequences, 0 to 1."
        )
        pages = self._gauge("gatewayd_kv_pages", "KV-cache pages by state.", "state")
        token = self._gauge("gatewayd_kv_bytes_per_token", "KV-cache bytes per token.")
        weights = self._gauge(
            "gatewayd_model_weight_bytes", "Memory of the model weights in bytes."
        )
        config = self._gauge(
            "vllm:cache_config_info", "KV-cache configuration.", "block_size", "num_gpu_blocks"
        )
        for replica in replicas:
            key, stats = [self._model_name, str(replica.index)], replica.stats
            running.add_metric(key, stats.num_running)
            waiting.add_metric(key, stats.num_waiting)
            # Deferred and held sequences are among the waiting ones.
            capacity = stats.num_waiting - stats.num_deferred - stats.num_held
            reasons.add_metric([*key, "capacity"], capacity)
            reasons.add_metric([*key, "deferred"], stats.num_deferred)
            reasons.add_metric([*key, "held"], stats.num_held)
            states = {
                "free": stats.free_pages,
                "cached": stats.cached_pages,
                "held": stats.held_pages,
            }
            # An engine that is still loading has no pages.
            usage.add_metric(key, stats.held_pages / max(1, sum(states.values())))
            for state, count in states.items():
                pages.add_metric([*key, state], count)
            if replica.model is not None:
                sizes = [str(replica.model.page_size), str(replica.model.num_pages)]
                config.add_metric([*key, *sizes], 1)
                token.add_metric(key, replica.model.page_bytes / replica.model.page_size)
                weights.add_metric(key, replica.model.weight_bytes)
        if pending := self._fleet.num_pending:
            waiting.add_metric([self._model_name, "none"], pending)
            reasons.add_metric([self._model_name, "none", "no_engine"], pending)
        yield from (running, waiting, reasons, usage, pages, token, config, weights)

    def _machine(self, replicas: Sequence[ReplicaStatus]) -> Iterator[Metric]:
        """Yield the resource usage of engine processes that have reported it."""
        resident = self._gauge(
            "gatewayd_engine_resident_bytes", "Resident memory of the engine process."
        )
        seconds = CounterMetricFamily(
            "gatewayd_engine_cpu_seconds",
            "CPU seconds of the engine process.",
            labels=["model_name", "engine"],
        )
        memory = self._gauge("gatewayd_device_memory_bytes", "Device memory by state.", "state")
        busy = self._gauge("gatewayd_device_utilization", "Device utilization, 0 to 1.")
        for replica in replicas:
            if (machine := replica.machine) is None:
                continue
            key = [self._model_name, str(replica.index)]
            seconds.add_metric(key, machine.cpu_seconds)
            if machine.resident_bytes is not None:
                resident.add_metric(key, machine.resident_bytes)
            if machine.device_used is not None and machine.device_total is not None:
                memory.add_metric([*key, "used"], machine.device_used)
                memory.add_metric([*key, "free"], machine.device_total - machine.device_used)
            if machine.device_utilization is not None:
                busy.add_metric(key, machine.device_utilization)
        yield from (resident, seconds, memory, busy)

    def _counters(self, replicas: Sequence[ReplicaStatus]) -> Iterator[Metric]:
        for name, text, attribute in (
            ("vllm:num_preemptions", "Preemptions of sequences.", "preemptions"),
            ("gatewayd_preemption_swaps", "Preempted sequences swapped to host memory.", "swaps"),
            (
                "vllm:prefix_cache_queries",
                "Prefix-cache queries, in prompt tokens.",
                "prefix_queries",
            ),
            ("vllm:prefix_cache_hits", "Prefix-cache hits, in prompt tokens.", "prefix_hits"),
            ("gatewayd_kv_evictions", "Evictions of cached KV pages.", "evictions"),
            ("gatewayd_kv_compactions", "Prompts compacted by KV compression.", "compactions"),
            ("gatewayd_kv_compacted_pages", "KV pages freed by KV compression.", "compacted_pages"),
            (
                "vllm:spec_decode_num_drafts",
                "Speculative drafts, one per sequence and step.",
                "num_drafts",
            ),
            ("vllm:spec_decode_num_draft_tokens", "Draft tokens proposed.", "draft_tokens"),
            ("vllm:spec_decode_num_accepted_tokens", "Draft tokens accepted.", "accepted_tokens"),
            ("gatewayd_engine_steps", "Engine steps.", "step"),
            (
                "gatewayd_engine_computed_tokens",
                "Tokens computed, prefill and decode.",
                "computed_tokens",
            ),
            ("gatewayd_engine_busy_seconds", "Seconds spent in engine steps.", "busy_seconds"),
            (
                "gatewayd_strategy_faults",
                ("Faults of strategies for which the default strategy stepped in."),
                "faults",
            ),
        ):
            family = CounterMetricFamily(name, text, labels=["model_name", "engine"])
            for replica in replicas:
                value = getattr(replica.stats, attribute)
                family.add_metric([self._model_name, str(replica.index)], value)
            yield family
        yield self._accepted_at(replicas)
        yield self._tier_hits(replicas)

    def _accepted_at(self, replicas: Sequence[ReplicaStatus]) -> Metric:
        family = CounterMetricFamily(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens accepted, by position in the draft.",
            labels=["model_name", "engine", "position"],
        )
        for replica in replicas:
            # Position 0 exists from the start: a rate needs a first value of zero.
            for position, count in enumerate(replica.stats.accepted_at or [0]):
                family.add_metric([self._model_name, str(replica.index), str(position)], count)
        return family

    def _tier_hits(self, replicas: Sequence[ReplicaStatus]) -> Metric:
        family = CounterMetricFamily(
            "gatewayd_kv_tier_hits",
            "KV-tier hits, in prompt tokens.",
            labels=["model_name", "engine", "tier"],
        )
        for replica in replicas:
            for tier, count in replica.stats.tier_hits.items():
                family.add_metric([self._model_name, str(replica.index), tier], count)
        return family

    def _strategies(self) -> Iterator[Metric]:
        """Yield calls, seconds and swaps of strategies."""
        if self._control is None:
            return
        labels = ["model_name", "engine", "kind", "name"]
        seconds = CounterMetricFamily(
            "gatewayd_strategy_seconds", "Seconds spent in calls of a strategy.", labels=labels
        )
        calls = CounterMetricFamily(
            "gatewayd_strategy_calls", "Calls of a strategy.", labels=labels
        )
        for engine, row in self._control.costs():
            key = [self._model_name, engine, row.kind, row.name]
            seconds.add_metric(key, row.seconds)
            calls.add_metric(key, row.calls)
        swaps = CounterMetricFamily(
            "gatewayd_strategy_swaps",
            "Strategy swaps at runtime.",
            labels=["model_name", "kind"],
        )
        for kind, count in self._control.swaps.items():
            swaps.add_metric([self._model_name, kind], count)
        yield from (seconds, calls, swaps)

    def _step_sizes(self, replicas: Sequence[ReplicaStatus]) -> Metric:
        family = HistogramMetricFamily(
            "vllm:iteration_tokens_total",
            "Tokens per engine step.",
            labels=["model_name", "engine"],
        )
        for replica in replicas:
            key, stats = [self._model_name, str(replica.index)], replica.stats
            # Empty until the engine's first step.
            counts = stats.step_sizes or [0] * (len(STEP_SIZES) + 1)
            add_histogram(family, key, STEP_SIZES, counts, stats.computed_tokens)
        return family

    def _states(self, replicas: Sequence[ReplicaStatus]) -> Iterator[Metric]:
        state = self._gauge(
            "gatewayd_replica_state", "1 for the current state of the replica.", "state"
        )
        restarts = CounterMetricFamily(
            "gatewayd_engine_restarts",
            "Engine restarts after a crash or hang.",
            labels=["model_name", "engine"],
        )
        for replica in replicas:
            key = [self._model_name, str(replica.index)]
            restarts.add_metric(key, replica.restarts)
            # A series for each state, one of which is 1, like a StateSet of OpenMetrics.
            for one in ReplicaState:
                state.add_metric([*key, one.value], float(one is replica.state))
        yield from (state, restarts)

    def _gauge(self, name: str, text: str, *labels: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(name, text, labels=["model_name", "engine", *labels])
