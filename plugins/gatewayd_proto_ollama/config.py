"""Settings of ``[protocol.ollama]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class OllamaConfig(StrategyConfig):
    """What clients are told."""

    version: str = setting(
        "0.12.6",
        reload="restart",
        min_length=1,
        max_length=32,
        doc="Version of Ollama whose API this is, for clients that ask before they begin.",
    )
