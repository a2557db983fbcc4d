"""Tables of strategies: one for each kind, with a sub-table of settings for each strategy."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

NONE = "none"
"""Chooses no strategy for a kind."""

AUTO = "auto"
"""Leaves the choice to the checkpoint, or to the model's chat template."""

NATIVE = "native"
"""Chooses the engine's own decoder instead of a model backend."""


class KindTable(BaseModel):
    """Table of a strategy kind, with a sub-table of settings for each strategy by name."""

    model_config = ConfigDict(extra="allow", frozen=True, validate_default=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_stray_keys(cls, data: Any) -> Any:  # noqa: ANN401 - whatever the file holds
        if isinstance(data, dict):
            # ``extra="allow"`` is for sub-tables; a misspelt key of the table itself is an error.
            for key, value in data.items():
                if key not in cls.model_fields and not isinstance(value, dict):
                    known = ", ".join(cls.model_fields)
                    raise ValueError(
                        f"unknown key {key!r}; there is {known}, and one table for each strategy"
                    )
        return data

    def settings(self, name: str) -> dict[str, Any]:
        """The settings of a strategy of this kind."""
        return dict((self.model_extra or {}).get(name, {}))


class StrategyTable(KindTable):
    """Table of a kind with exactly one strategy."""

    strategy: str = Field(pattern=r"^[a-z0-9_]+$")


class SchedulerTable(StrategyTable):
    """Scheduling of sequences in each engine step."""

    strategy: str = Field(default="fcfs", pattern=r"^[a-z0-9_]+$")


class PrefixCacheTable(StrategyTable):
    """Prefix caching of computed prompts; ``none`` disables it."""

    strategy: str = Field(default="hash", pattern=r"^[a-z0-9_]+$")


class EvictionTable(StrategyTable):
    """Eviction of cached KV pages."""

    strategy: str = Field(default="lru", pattern=r"^[a-z0-9_]+$")


class PreemptionTable(StrategyTable):
    """Preemption of running sequences when KV pages run out."""

    strategy: str = Field(default="recompute", pattern=r"^[a-z0-9_]+$")


class KvCodecTable(StrategyTable):
    """Encoding of the KV cache; ``none`` stores it in the model's precision."""

    strategy: str = Field(default="none", pattern=r"^[a-z0-9_]+$")


class KvCompressionTable(StrategyTable):
    """Sparse attention and compression of long contexts; ``none`` attends to all tokens."""

    strategy: str = Field(default="none", pattern=r"^[a-z0-9_]+$")


class DrafterTable(StrategyTable):
    """Drafting of tokens for speculative decoding; ``none`` disables it."""

    strategy: str = Field(default="none", pattern=r"^[a-z0-9_]+$")


class QuantizerTable(StrategyTable):
    """Weight quantization: ``auto`` follows the checkpoint, ``none`` requires floats."""

    strategy: str = Field(default="auto", pattern=r"^[a-z0-9_]+$")
    skip: list[str] = []
    kernels: list[str] = []

    @field_validator("kernels")
    @classmethod
    def _refuse_repetition(cls, names: list[str]) -> list[str]:
        return _each_once(names)


class ModelBackendTable(KindTable):
    """Settings of model backends; ``[model] backend`` chooses one."""


class SpecControllerTable(StrategyTable):
    """Number of draft tokens in speculative decoding."""

    strategy: str = Field(default="adaptive", pattern=r"^[a-z0-9_]+$")


class AdmissionTable(StrategyTable):
    """Admission of requests."""

    strategy: str = Field(default="room", pattern=r"^[a-z0-9_]+$")


class RouterTable(StrategyTable):
    """Routing of requests to replicas."""

    strategy: str = Field(default="least_loaded", pattern=r"^[a-z0-9_]+$")


class ExecutorTable(StrategyTable):
    """Launching of engine processes."""

    strategy: str = Field(default="local", pattern=r"^[a-z0-9_]+$")


class ResidencyTable(StrategyTable):
    """Choice of the model that is unloaded for another one."""

    strategy: str = Field(default="lru", pattern=r"^[a-z0-9_]+$")


class ToolParserTable(StrategyTable):
    """Parsing of tool calls; ``auto`` follows the model's chat template, ``none`` disables it."""

    strategy: str = Field(default="auto", pattern=r"^[a-z0-9_]+$")


class ReasoningParserTable(StrategyTable):
    """Parsing of reasoning; ``auto`` follows the model's chat template, ``none`` disables it."""

    strategy: str = Field(default="auto", pattern=r"^[a-z0-9_]+$")


class ChainTable(KindTable):
    """Table of a kind with an ordered chain of strategies."""

    strategies: list[str]

    @field_validator("strategies")
    @classmethod
    def _refuse_repetition(cls, names: list[str]) -> list[str]:
        return _each_once(names)


class LogitsProcessorTable(ChainTable):
    """Logits processors, in the order in which they run before sampling."""

    strategies: list[str] = ["penalties", "bias", "min_tokens"]


class KvTierTable(ChainTable):
    """Tiers that store pages evicted from the KV cache, nearest first."""

    strategies: list[str] = []


class ProtocolTable(ChainTable):
    """Protocols: APIs served in addition to OpenAI's."""

    strategies: list[str] = ["anthropic", "ollama"]


def _each_once(names: list[str]) -> list[str]:
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"{twice} is listed twice")
    return names
