"""How one engine process is set up; the first frame it receives. Imports no torch."""

from __future__ import annotations

from typing import Any

import msgspec


class StrategyChoice(msgspec.Struct, frozen=True):
    """A strategy by name and its settings, as the configuration states them."""

    name: str
    settings: dict[str, Any] = {}


class EngineConfig(msgspec.Struct, frozen=True, tag="config"):
    """Everything an engine needs to start.

    Paths and sizes are checked by the engine; what it cannot serve ends in ``Fatal`` with a
    sentence that names the value and the limit.
    """

    model: str
    """Folder of the checkpoint."""
    scheduler: StrategyChoice
    prefix_cache: StrategyChoice | None
    """None switches prefix caching off."""
    eviction: StrategyChoice
    preemption: StrategyChoice
    logits_processors: list[StrategyChoice] = []
    drafter: StrategyChoice | None = None
    """None switches speculation off."""
    spec_controller: StrategyChoice = StrategyChoice("adaptive")
    dtype: str = "auto"
    """``auto`` (float32 on CPU), ``float32`` or ``bfloat16``."""
    device: str = "cpu"
    dummy_weights: bool = False
    """Random weights from config.json alone."""
    page_size: int = 16
    kv_pages: int | None = None
    """Pages of the pool; None takes ``kv_bytes``."""
    kv_bytes: int = 1 << 30
    max_running: int = 64
    max_batch_tokens: int = 512
    max_model_len: int | None = None
    """None takes the model's context."""
    threads: int | None = None
    """torch's threads; None lets the engine choose."""
    seed: int = 0
    """From which each request that brings none gets a seed of its own, by its place among them;
    0 begins elsewhere at each start. Dummy weights are made from it as it is, 0 included."""
    fault_limit: int = 3
    """Faults after which a strategy is quarantined."""
