"""Settings of ``[drafter.ngram]``."""

from __future__ import annotations

from pydantic import model_validator

from gatewayd_hooks.strategy import StrategyConfig, setting


class NgramConfig(StrategyConfig):
    """How much must repeat, and how far back is looked."""

    min_match: int = setting(
        2, reload="hot", ge=1, le=64, doc="Tokens at the end that must have stood before."
    )
    max_match: int = setting(
        8, reload="hot", ge=1, le=64, doc="Tokens beyond which a longer repetition is no better."
    )
    window: int = setting(
        4096, reload="hot", ge=16, le=1_000_000, doc="Tokens of the sequence that are searched."
    )

    @model_validator(mode="after")
    def _in_order(self) -> NgramConfig:
        if self.max_match < self.min_match:
            raise ValueError(f"max_match is {self.max_match}, below min_match {self.min_match}")
        return self
