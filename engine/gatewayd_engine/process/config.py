"""Configuration of one engine process: the first frame it receives. Imports no torch."""

from __future__ import annotations

from typing import Any

import msgspec

from gatewayd_hooks.strategy import Kind


class StrategyChoice(msgspec.Struct, frozen=True):
    """A strategy by name, with its settings as configured."""

    name: str
    settings: dict[str, Any] = {}


class EngineConfigError(Exception):
    """The configuration cannot be served; the message names the value and the limit."""


class GuideLimits(msgspec.Struct, frozen=True):
    """Resource limits of grammars in an engine."""

    compile_seconds: float = 30.0
    """Time limit; a busy engine compiles slower than the process that has checked a grammar."""
    text_bytes: int = 1 << 20
    """Maximum size of a schema, an expression or a grammar."""
    cached: int = 64
    """Compiled grammars cached for requests with the same one."""
    cached_bytes: int = 64 << 20
    """Memory of the cached grammars, including what their use adds to them."""
    token_seconds: float = 0.005
    """Time budget for each token of a sequence; all sequences of a step wait for it."""
    ahead_seconds: float = 0.5
    """Time that a sequence may exceed its budget by: first tokens cost more than others."""
    step_seconds: float = 0.05
    """Time of all grammars in a step, beyond which the most expensive sequences are ended."""


CHAINS = {Kind.LOGITS_PROCESSOR: "logits_processors", Kind.KV_TIER: "kv_tiers"}
"""Kinds with a chain of strategies per engine, and their fields."""


class EngineConfig(msgspec.Struct, frozen=True, tag="config"):
    """Everything an engine needs to start.

    Paths and sizes are checked by the engine; a configuration it cannot serve ends in ``Fatal``
    with a message that names the value and the limit.
    """

    model: str
    """Folder of the checkpoint."""
    scheduler: StrategyChoice
    prefix_cache: StrategyChoice | None
    """None disables prefix caching."""
    eviction: StrategyChoice
    preemption: StrategyChoice
    logits_processors: list[StrategyChoice] = []
    kv_tiers: list[StrategyChoice] = []
    """Nearest first."""
    kv_codec: StrategyChoice | None = None
    """None stores keys and values in the data type of the attention computation."""
    kv_compression: StrategyChoice | None = None
    """None attends to the full context."""
    drafter: StrategyChoice | None = None
    """None disables speculative decoding."""
    spec_controller: StrategyChoice = StrategyChoice("adaptive")
    model_backend: StrategyChoice = StrategyChoice("auto")
    """``native`` is the engine's own decoder; ``auto``, with settings by backend name, takes it
    where it can serve the model, else ``transformers``."""
    quantizer: StrategyChoice | None = None
    """None uses weights as stored; ``auto``, with settings by quantizer name, selects the one that
    the checkpoint specifies, if any."""
    quantizer_skip: list[str] = []
    """Globs of names of matrices that are not quantized at load time."""
    quantizer_kernels: list[StrategyChoice] = []
    """Quantizers that may provide kernels for low-bit weights, in order of preference."""
    guide: StrategyChoice | None = None
    """None rejects requests with a grammar."""
    guide_limits: GuideLimits = GuideLimits()
    dtype: str = "auto"
    """``auto`` (float32 on CPU, bfloat16 on a GPU), ``float32`` or ``bfloat16``."""
    device: str = "cpu"
    """``cpu``, ``cuda`` or ``cuda:N``."""
    dummy_weights: bool = False
    """Random weights from config.json alone."""
    page_size: int = 16
    kv_pages: int | None = None
    """Pages of the pool; None derives it from ``kv_bytes``."""
    kv_bytes: int | None = None
    """None uses 1 GiB on a CPU, and the remaining memory on a GPU."""
    copy_bytes: int | None = None
    """Memory of the contiguous copies of decoding contexts, for attention in torch on a CPU; None
    allows as much as the pool has, and 1 GiB where that is less and decoded numbers are larger."""
    gpu_memory_utilization: float = 0.9
    """Share of a GPU's memory for the engine, if ``kv_bytes`` is None."""
    draft_bytes: int | None = None
    """Part of ``kv_bytes`` reserved for a draft model; None reserves what the drafter needs."""
    cascade_attention: bool = False
    """Whether a GPU computes attention to a prefix shared by all decoding sequences only once."""
    capture: str = "auto"
    """Whether a GPU's steps are captured in CUDA graphs: ``auto`` or ``off``."""
    cpu_kernels: str = "auto"
    """Kernels of a CPU: ``auto`` compiles them where the processor is supported, ``torch`` uses
    torch's operations."""
    cpu_activations: str = "int8"
    """What compiled kernels multiply low-bit integer weights with: activations rounded to ``int8``,
    32 with one scale, or ``float`` ones."""
    max_running: int = 64
    max_batch_tokens: int = 512
    max_model_len: int | None = None
    """None uses the model's context length."""
    threads: int | None = None
    """Threads of steps on a CPU; None lets the engine choose."""
    cpus: list[int] = []
    """CPUs of all replicas; empty for those that the process may use."""
    replicas: int = 1
    """Number of engines of the daemon, which share the CPUs."""
    seed: int = 0
    """Seed from which each request without one gets its own, in order of arrival; 0 draws another
    one at each start. Dummy weights are made from it as it is, 0 included."""
    fault_limit: int = 3
    """Faults after which a strategy is quarantined."""
    strategy_budget_ms: float = 50.0
    """Milliseconds that a call of a strategy may take on average."""
    strategy_hang_seconds: float = 2.0
    """Seconds after which a call of a strategy is interrupted."""
    load_seconds: float = 600.0
    """Seconds after which ``open`` is interrupted, which may load a model."""
    quarantined: list[list[str]] = []
    """Kind and name of quarantined strategies, which have ended an engine; defaults serve."""
    log_level: str = "info"
    log_json: bool = False
    """Whether log lines are JSON objects, as the daemon's are."""
    log_model: str = ""
    """Name of the model in log lines; empty if the daemon serves no other."""
    replica: int = 0
    """Index of this engine among those of its model."""
    name: str = ""
    """Name of the model where the daemon has several; empty for the first."""
    marker: str = ""
    """Name of the shared memory that shows which strategy is running; see ``Marker``."""

    def choices(self, kind: Kind) -> list[StrategyChoice]:
        """Return the strategies of a kind: none, one, or a chain."""
        # A chain has a list under another name than its kind; every other kind is a field of its
        # name.
        if kind in CHAINS:
            chain: list[StrategyChoice] = getattr(self, CHAINS[kind])
            return chain
        choice: StrategyChoice | None = getattr(self, kind.value)
        return [] if choice is None else [choice]

    def with_choices(self, kind: Kind, choices: list[StrategyChoice]) -> EngineConfig:
        """Return a copy with other strategies of a kind."""
        if kind in CHAINS:
            return msgspec.structs.replace(self, **{CHAINS[kind]: choices})
        return msgspec.structs.replace(self, **{kind.value: choices[0] if choices else None})

    def without_quarantine(self, strategies: list[list[str]]) -> EngineConfig:
        """Return a copy in which some strategies are no longer quarantined."""
        rest = [one for one in self.quarantined if one not in strategies]
        return msgspec.structs.replace(self, quarantined=rest)


ENGINE_KINDS = tuple(
    kind for kind in Kind if kind in CHAINS or kind.value in EngineConfig.__struct_fields__
)
"""The kinds that engines load, each with a field of its own."""

FIXED_KINDS = (Kind.KV_CODEC, Kind.QUANTIZER, Kind.MODEL_BACKEND)
"""Kinds that cannot be swapped while an engine runs: stored data depends on them."""
