"""Settings of ``[protocol.ollama]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class OllamaConfig(StrategyConfig):
    """Information for clients."""

    version: str = setting(
        "0.12.6",
        reload="restart",
        min_length=1,
        max_length=32,
        doc="Ollama version reported to clients, 1 to 32 characters; some clients check it first.",
    )
