"""Settings of ``[eviction.cost]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class CostConfig(StrategyConfig):
    """Where a page's place in its prompt begins to count."""

    even_tokens: int = setting(
        8192,
        reload="restart",
        doc="Tokens of context at which attention costs as much as all else that a token takes.",
        ge=1,
    )
