"""Settings of ``[upstreams.NAME.settings]`` for strategy ``anthropic``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class AnthropicUpstreamConfig(StrategyConfig):
    """Defaults of the API."""

    max_tokens: int = setting(
        4096,
        reload="restart",
        ge=1,
        le=2**31 - 1,
        doc="`max_tokens` of requests that set none, as the API requires it.",
    )
    version: str = setting(
        "2023-06-01",
        reload="restart",
        pattern=r"^\d{4}-\d{2}-\d{2}$",
        doc="Value of the header `anthropic-version`.",
    )
