"""How one engine process is set up; the first frame it receives. Imports no torch."""

from __future__ import annotations

from typing import Any

import msgspec

from gatewayd_hooks.strategy import Kind


class StrategyChoice(msgspec.Struct, frozen=True):
    """A strategy by name and its settings, as the configuration states them."""

    name: str
    settings: dict[str, Any] = {}


class EngineConfigError(Exception):
    """The configuration asks for what cannot be; the sentence names the value and the limit."""


class GuideLimits(msgspec.Struct, frozen=True):
    """What grammars may cost an engine."""

    compile_seconds: float = 30.0
    """A busy engine takes longer than the process that has checked a grammar before."""
    text_bytes: int = 1 << 20
    """Characters of a schema, an expression or a grammar."""
    cached: int = 64
    """Compiled grammars that are kept for those who ask for the same."""
    cached_bytes: int = 64 << 20
    """What they take together, with all that they have grown by where they were followed."""
    token_seconds: float = 0.005
    """What following a grammar may take for each token of a sequence; all wait for it."""
    ahead_seconds: float = 0.5
    """What a sequence may have taken beyond that: first tokens cost more than others."""
    step_seconds: float = 0.05
    """What all of them may take of a step together, before the costliest are ended."""


CHAINS = {Kind.LOGITS_PROCESSOR: "logits_processors", Kind.KV_TIER: "kv_tiers"}
"""Kinds of which an engine has any number, in order, and their fields."""


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
    kv_tiers: list[StrategyChoice] = []
    """Nearest first."""
    kv_codec: StrategyChoice | None = None
    """None keeps keys and values as the numbers that attention computes with."""
    kv_compression: StrategyChoice | None = None
    """None attends to all that there is."""
    drafter: StrategyChoice | None = None
    """None switches speculation off."""
    spec_controller: StrategyChoice = StrategyChoice("adaptive")
    quantizer: StrategyChoice | None = None
    """None takes weights as they are stored; of the name ``auto``, whose settings are tables by
    name, the one that the checkpoint asks for, if any."""
    quantizer_skip: list[str] = []
    """Globs of names of matrices that are not quantized while loading."""
    quantizer_kernels: list[StrategyChoice] = []
    """Quantizers that are asked, in this order, to multiply weights of few bits."""
    guide: StrategyChoice | None = None
    """None refuses requests whose answers are to follow a grammar."""
    guide_limits: GuideLimits = GuideLimits()
    dtype: str = "auto"
    """``auto`` (float32 on CPU, bfloat16 on a GPU), ``float32`` or ``bfloat16``."""
    device: str = "cpu"
    """``cpu``, ``cuda`` or ``cuda:N``."""
    dummy_weights: bool = False
    """Random weights from config.json alone."""
    page_size: int = 16
    kv_pages: int | None = None
    """Pages of the pool; None takes ``kv_bytes``."""
    kv_bytes: int | None = None
    """None takes 1 GiB on a CPU, and on a GPU what is left of it."""
    copy_bytes: int | None = None
    """What the second copies of contexts that decode may take, on a CPU; None takes as much as the
    pool has, and 1 GiB where that is less and their numbers take more."""
    gpu_memory_utilization: float = 0.9
    """The part of a GPU that the engine may have, where ``kv_bytes`` is None."""
    draft_bytes: int | None = None
    """Of those, what is kept for a drafter's model; None keeps what the chosen drafter needs."""
    cascade_attention: bool = False
    """Whether a GPU attends to what all decoding sequences begin with once for all of them."""
    capture: str = "auto"
    """Whether a GPU's steps are captured in CUDA graphs: ``auto`` or ``off``."""
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
    strategy_budget_ms: float = 50.0
    """Milliseconds that a call of a strategy may take on average."""
    strategy_hang_seconds: float = 2.0
    """Seconds after which a call of a strategy is interrupted."""
    load_seconds: float = 600.0
    """The same for ``open``, which may load a model."""
    quarantined: list[list[str]] = []
    """Kind and name of strategies that have ended an engine: their defaults serve."""
    log_level: str = "info"
    log_json: bool = False
    """Whether log lines are JSON objects, as the daemon's are."""
    replica: int = 0
    """Which of the daemon's engines it is."""
    marker: str = ""
    """Memory that says which strategy runs, for the daemon to read; see ``Marker``."""

    def choices(self, kind: Kind) -> list[StrategyChoice]:
        """The strategies of a kind: none, one, or a chain."""
        if kind in CHAINS:
            chain: list[StrategyChoice] = getattr(self, CHAINS[kind])
            return chain
        choice: StrategyChoice | None = getattr(self, kind.value)
        return [] if choice is None else [choice]

    def with_choices(self, kind: Kind, choices: list[StrategyChoice]) -> EngineConfig:
        """The same with other strategies of a kind."""
        if kind in CHAINS:
            return msgspec.structs.replace(self, **{CHAINS[kind]: choices})
        return msgspec.structs.replace(self, **{kind.value: choices[0] if choices else None})

    def without_quarantine(self, strategies: list[list[str]]) -> EngineConfig:
        """The same with some strategies trusted again."""
        rest = [one for one in self.quarantined if one not in strategies]
        return msgspec.structs.replace(self, quarantined=rest)


ENGINE_KINDS = tuple(
    kind for kind in Kind if kind in CHAINS or kind.value in EngineConfig.__struct_fields__
)
"""The kinds that engines load, each with a field of its own."""

FIXED_KINDS = (Kind.KV_CODEC, Kind.QUANTIZER)
"""Those that stay as they are while an engine runs: what it holds is in their form."""
