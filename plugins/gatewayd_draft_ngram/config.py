"""Settings of ``[drafter.ngram]``."""

from __future__ import annotations

from pydantic import model_validator

from gatewayd_hooks.strategy import StrategyConfig, setting


class NgramConfig(StrategyConfig):
    """Length of matches, and the search window."""

    min_match: int = setting(
        2,
        reload="hot",
        ge=1,
        le=64,
        doc=(
            "Minimum number of last tokens, from 1 to 64, that must occur earlier in the sequence."
        ),
    )
    max_match: int = setting(
        8,
        reload="hot",
        ge=1,
        le=64,
        doc=(
            "Number of matching tokens, from 1 to 64, beyond which longer matches are not "
            "preferred."
        ),
    )
    window: int = setting(
        4096,
        reload="hot",
        ge=16,
        le=1_000_000,
        doc="Number of latest tokens, from 16 to 1000000, in which matches are searched.",
    )

    @model_validator(mode="after")
    def _in_order(self) -> NgramConfig:
        if self.max_match < self.min_match:
            raise ValueError(f"max_match is {self.max_match}, below min_match {self.min_match}")
        return self
