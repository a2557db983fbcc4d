"""Settings of ``[eviction.cost]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class CostConfig(StrategyConfig):
    """Weight of a page's position in its prompt."""

    even_tokens: int = setting(
        8192,
        reload="restart",
        doc=(
            "Context length in tokens, at least 1, at which attention costs as much as the rest "
            "of a token's computation, about six times the model's hidden size; less makes depth "
            "count more."
        ),
        ge=1,
    )
