"""Settings of ``[routes.NAME.complexity]``."""

from typing import Annotated

from pydantic import Field, field_validator

from gatewayd_hooks.strategy import StrategyConfig, setting

Threshold = Annotated[float, Field(ge=0, le=1)]


class ComplexityConfig(StrategyConfig):
    """Bounds between targets."""

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
