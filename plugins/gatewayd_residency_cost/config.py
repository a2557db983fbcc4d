"""Settings of ``[residency.cost]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class CostResidencyConfig(StrategyConfig):
    """Definition of the cost of a model's absence."""

    by_memory: bool = setting(
        default=True,
        reload="hot",
        doc="Whether the cost is divided by the memory that the model takes, so that one large"
        " model may go instead of several small ones.",
    )
