"""Settings of ``[routes.NAME.fallback]``."""

from typing import Literal

from gatewayd_hooks.strategy import StrategyConfig, setting
from gatewayd_hooks.targets.model_routing import FAILURES

Failure = Literal[
    "overloaded", "unavailable", "lost", "numerical", "context", "upstream", "unsupported"
]


class FallbackConfig(StrategyConfig):
    """Failures after which the next target answers."""

    on: list[Failure] = setting(
        list(FAILURES),
        reload="restart",
        doc="Failures of a target after which the next one is tried: `overloaded` (its queue is "
        "full), `unavailable` (not served now), `lost` (its engine ended), `numerical` (NaN "
        "logits), `context` (its context is too short), `upstream` (the error of another server), "
        "`unsupported` (it cannot do what a field asks for, such as an upstream with token ids).",
    )
