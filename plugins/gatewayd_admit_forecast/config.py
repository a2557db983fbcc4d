"""Settings of ``[admission.forecast]``."""

from typing import Literal

from gatewayd_hooks.strategy import StrategyConfig, setting


class ForecastConfig(StrategyConfig):
    """How sure a promise must be, and what is ahead of a request."""

    confidence: float = setting(
        0.9,
        reload="hot",
        ge=0.5,
        le=0.999,
        doc="Share of first tokens that are to come within their forecast.",
    )
    ahead: Literal["arrival", "class", "tenant"] = setting(
        "class",
        reload="hot",
        doc="Whose prompts are computed before a request's: of all that wait (`arrival`, for the "
        "scheduler fcfs), of its class and more urgent ones (`class`, for priority and slo), or "
        "each tenant's as many as its own (`tenant`, for fair).",
    )
    least: int = setting(
        20,
        reload="hot",
        ge=1,
        le=100_000,
        doc="First tokens that are seen before anybody is refused.",
    )
