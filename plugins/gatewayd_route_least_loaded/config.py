"""Settings of ``[router.least_loaded]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class LeastLoadedConfig(StrategyConfig):
    """What counts as load."""

    tokens_per_sequence: int = setting(
        512,
        reload="hot",
        ge=1,
        doc="Queued prompt tokens that weigh as much as one sequence.",
    )
