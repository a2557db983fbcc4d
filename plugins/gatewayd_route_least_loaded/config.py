"""Settings of ``[router.least_loaded]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class LeastLoadedConfig(StrategyConfig):
    """Definition of load."""

    tokens_per_sequence: int = setting(
        512,
        reload="hot",
        ge=1,
        doc="Number of queued prompt tokens, at least 1, that count as much as one sequence.",
    )
