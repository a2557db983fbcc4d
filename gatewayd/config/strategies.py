"""The tables that choose strategies: one for each slot, in it one for each strategy's settings."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

NONE = "none"
"""What stands for no strategy in a slot."""

AUTO = "auto"
"""What leaves the strategy of a slot to the checkpoint, or to the model's template."""


class SlotTable(BaseModel):
    """A slot for strategies, and one sub-table of settings for each strategy by name."""

    model_config = ConfigDict(extra="allow", frozen=True, validate_default=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_stray_keys(cls, data: Any) -> Any:  # noqa: ANN401 - whatever the file holds
        if isinstance(data, dict):
            for key, value in data.items():
                if key not in cls.model_fields and not isinstance(value, dict):
                    known = ", ".join(cls.model_fields)
                    raise ValueError(
                        f"unknown key {key!r}; there is {known}, and one table for each strategy"
                    )
        return data

    def settings(self, name: str) -> dict[str, Any]:
        """What the configuration says of one strategy of this kind."""
        return dict((self.model_extra or {}).get(name, {}))


class StrategyTable(SlotTable):
    """A slot with one owner."""

    strategy: str = Field(pattern=r"^[a-z0-9_]+$")


class SchedulerTable(StrategyTable):
    """Who computes next."""

    strategy: str = Field(default="fcfs", pattern=r"^[a-z0-9_]+$")


class PrefixCacheTable(StrategyTable):
    """How computed prompts are found again; ``none`` switches it off."""

    strategy: str = Field(default="hash", pattern=r"^[a-z0-9_]+$")


class EvictionTable(StrategyTable):
    """Which cached page is given up."""

    strategy: str = Field(default="lru", pattern=r"^[a-z0-9_]+$")


class PreemptionTable(StrategyTable):
    """Which sequence gives up its pages."""

    strategy: str = Field(default="recompute", pattern=r"^[a-z0-9_]+$")


class KvCodecTable(StrategyTable):
    """How keys and values are written; ``none`` keeps them as they are."""

    strategy: str = Field(default="none", pattern=r"^[a-z0-9_]+$")


class KvCompressionTable(StrategyTable):
    """What long contexts are attended to; ``none`` attends to all."""

    strategy: str = Field(default="none", pattern=r"^[a-z0-9_]+$")


class DrafterTable(StrategyTable):
    """What guesses tokens ahead; ``none`` switches speculation off."""

    strategy: str = Field(default="none", pattern=r"^[a-z0-9_]+$")


class QuantizerTable(StrategyTable):
    """What gives weights of few bits: ``auto`` asks the checkpoint, ``none`` takes floats."""

    strategy: str = Field(default="auto", pattern=r"^[a-z0-9_]+$")
    skip: list[str] = []
    kernels: list[str] = []

    @field_validator("kernels")
    @classmethod
    def _refuse_repetition(cls, names: list[str]) -> list[str]:
        return _each_once(names)


class SpecControllerTable(StrategyTable):
    """How many tokens are guessed."""

    strategy: str = Field(default="adaptive", pattern=r"^[a-z0-9_]+$")


class AdmissionTable(StrategyTable):
    """Who is taken on."""

    strategy: str = Field(default="room", pattern=r"^[a-z0-9_]+$")


class RouterTable(StrategyTable):
    """Which replica serves."""

    strategy: str = Field(default="least_loaded", pattern=r"^[a-z0-9_]+$")


class ExecutorTable(StrategyTable):
    """Where engines run."""

    strategy: str = Field(default="local", pattern=r"^[a-z0-9_]+$")


class ToolParserTable(StrategyTable):
    """What finds tool calls in answers; ``auto`` asks the model's template, ``none`` is nobody."""

    strategy: str = Field(default="auto", pattern=r"^[a-z0-9_]+$")


class ReasoningParserTable(StrategyTable):
    """What finds reasoning in answers; ``auto`` asks the model's template, ``none`` is nobody."""

    strategy: str = Field(default="auto", pattern=r"^[a-z0-9_]+$")


class ChainTable(SlotTable):
    """A slot with an ordered list of owners, each of which answers to a name of its own."""

    strategies: list[str]

    @field_validator("strategies")
    @classmethod
    def _refuse_repetition(cls, names: list[str]) -> list[str]:
        return _each_once(names)


class LogitsProcessorTable(ChainTable):
    """What changes logits before they are sampled, in this order."""

    strategies: list[str] = ["penalties", "bias", "min_tokens"]


class KvTierTable(ChainTable):
    """Where pages go that the KV cache gives up, nearest first."""

    strategies: list[str] = []


class ProtocolTable(ChainTable):
    """Which other APIs are served beside OpenAI's."""

    strategies: list[str] = ["anthropic", "ollama"]


def _each_once(names: list[str]) -> list[str]:
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"{twice} is listed twice")
    return names
