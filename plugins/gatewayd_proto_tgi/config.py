"""Settings of ``[protocol.tgi]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class TgiConfig(StrategyConfig):
    """Defaults of requests."""

    max_new_tokens: int = setting(
        100,
        reload="restart",
        ge=1,
        le=2**31 - 1,
        doc=(
            "Maximum number of tokens of an answer whose request has no `max_new_tokens`, at "
            "least 1; the rest of the context if that is less."
        ),
    )
