"""Engine metrics: values after each engine's last step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry

from gatewayd.engines.api import ReplicaState, ReplicaStatus
from gatewayd.metrics.engines import FleetCollector
from gatewayd_engine.process.engine_stats import EngineStats
from gatewayd_engine.process.inspect_messages import MachineStats
from gatewayd_engine.process.messages import ModelInfo


class Fleet:
    """A fleet whose engines have said so."""

    def __init__(
        self, stats: Sequence[EngineStats], num_pending: int = 0, model: ModelInfo | None = None
    ) -> None:
        self._stats = stats
        self._model = model
        self.num_pending = num_pending

    def status(self) -> list[ReplicaStatus]:
        return [
            ReplicaStatus(index, ReplicaState.READY, 1, 1.0, 0, "", self._model, stats)
            for index, stats in enumerate(self._stats)
        ]


def value(
    stats: Sequence[EngineStats],
    name: str,
    engine: int | str = 0,
    num_pending: int = 0,
    **labels: str,
) -> float | None:
    fleet: Any = Fleet(stats, num_pending)
    registry = CollectorRegistry()
    registry.register(FleetCollector(fleet, "m"))
    labels = {"model_name": "m", "engine": str(engine), **labels}
    found: float | None = registry.get_sample_value(name, labels)
    return found


def test_waiting_sequences_are_told_by_reason() -> None:
    stats = [EngineStats(num_waiting=5, num_deferred=3)]
    name = "vllm:num_requests_waiting"
    assert value(stats, name) == 5
    assert value(stats, f"{name}_by_reason", reason="capacity") == 2
    assert value(stats, f"{name}_by_reason", reason="deferred") == 3


def test_what_waits_for_an_engine_waits_at_none() -> None:
    stats = [EngineStats(num_waiting=5)]
    name = "vllm:num_requests_waiting"
    assert value(stats, name, "none") is None
    assert value(stats, name, "none", num_pending=7) == 7
    assert value(stats, f"{name}_by_reason", "none", num_pending=7, reason="no_engine") == 7
    assert value(stats, name, 0, num_pending=7) == 5


def test_steps_are_told_by_the_tokens_they_computed() -> None:
    name = "vllm:iteration_tokens_total"
    stats = [
        EngineStats(),
        EngineStats(computed_tokens=20_012, step_sizes=[4, 1, *[0] * 11, 1]),
    ]
    assert value(stats, f"{name}_count", 0) == 0
    assert value(stats, f"{name}_count", 1) == 6
    assert value(stats, f"{name}_sum", 1) == 20_012
    bounds = ("1.0", "8.0", "16384.0", "+Inf")
    assert [value(stats, f"{name}_bucket", 1, le=le) for le in bounds] == [4, 5, 5, 6]


def test_machines_are_told_as_far_as_engines_know_them() -> None:
    class Told(Fleet):
        def status(self) -> list[ReplicaStatus]:
            said = [MachineStats(5, 2.5, 1.0, 60, 80, 0.75), MachineStats(7, 1.0, 0.5), None]
            return [
                replace(one, machine=machine)
                for one, machine in zip(super().status(), said, strict=True)
            ]

    fleet: Any = Told([EngineStats()] * 3)
    registry = CollectorRegistry()
    registry.register(FleetCollector(fleet, "m"))

    def told(name: str, **labels: str) -> list[float | None]:
        engines = [{"model_name": "m", "engine": str(each), **labels} for each in range(3)]
        return [registry.get_sample_value(name, each) for each in engines]

    assert told("gatewayd_engine_resident_bytes") == [5, 7, None]
    assert told("gatewayd_engine_cpu_seconds_total") == [2.5, 1.0, None]
    assert told("gatewayd_device_memory_bytes", state="used") == [60, None, None]
    assert told("gatewayd_device_memory_bytes", state="free") == [20, None, None]
    assert told("gatewayd_device_utilization") == [0.75, None, None]


def test_what_a_token_takes_is_told_of_engines_that_are_loaded() -> None:
    model = ModelInfo(
        architecture="a",
        num_parameters=1,
        dtype="float32",
        device="cpu",
        vocab_size=9,
        max_model_len=64,
        eos_token_ids=[0],
        num_pages=10,
        page_size=16,
        max_running=1,
        max_batch_tokens=1,
        page_bytes=16 * 768,
    )
    for loaded, said in ((model, 768), (None, None)):
        fleet: Any = Fleet([EngineStats()], model=loaded)
        registry = CollectorRegistry()
        registry.register(FleetCollector(fleet, "m"))
        labels = {"model_name": "m", "engine": "0"}
        assert registry.get_sample_value("gatewayd_kv_bytes_per_token", labels) == said
