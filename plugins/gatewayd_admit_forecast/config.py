"""Settings of ``[admission.forecast]``."""

from typing import Literal

from gatewayd_hooks.strategy import StrategyConfig, setting


class ForecastConfig(StrategyConfig):
    """Confidence of forecasts, and which requests are computed first."""

    confidence: float = setting(
        0.9,
        reload="hot",
        ge=0.5,
        le=0.999,
        doc=(
            "Fraction of first tokens that should arrive within their forecast, from 0.5 to 0.999."
        ),
    )
    ahead: Literal["arrival", "class", "tenant"] = setting(
        "class",
        reload="hot",
        doc=(
            "Which waiting prompts are assumed to be computed before a request's: all of them "
            "(`arrival`, for the scheduler fcfs), those of its class and of more urgent ones "
            "(`class`, for priority and slo), or as many tokens of each tenant as of its own "
            "(`tenant`, for fair)."
        ),
    )
    least: int = setting(
        20,
        reload="hot",
        ge=1,
        le=100_000,
        doc="Number of observed first tokens, from 1 to 100000, before any request is rejected.",
    )
