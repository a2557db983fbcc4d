"""Settings of ``[routes.NAME.complexity]``."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from gatewayd_hooks.strategy import StrategyConfig, setting

Threshold = Annotated[float, Field(ge=0, le=1)]


class ComplexityConfig(StrategyConfig):
    """Score of a request, and bounds between targets."""

    scorer: Literal["heuristic", "trained"] = setting(
        "heuristic",
        reload="restart",
        doc="Complexity by features of the text, or the probability that a small model's answer "
        "does not do, by a classifier trained on the embedded models.",
    )
    thresholds: list[Threshold] = setting(
        [0.3, 0.7],
        reload="restart",
        min_length=1,
        max_length=63,
        doc="Complexities, 0 to 1 and rising, from which the next target is chosen. Targets are "
        "listed from the smallest to the largest; the last has no upper bound.",
    )

    @field_validator("thresholds")
    @classmethod
    def _rise(cls, thresholds: list[float]) -> list[float]:
        if sorted(set(thresholds)) != thresholds:
            raise ValueError("thresholds must rise")
        return thresholds
