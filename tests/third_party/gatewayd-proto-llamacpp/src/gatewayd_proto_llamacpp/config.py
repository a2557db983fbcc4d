"""Settings of ``[protocol.llamacpp]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class LlamaCppSettings(StrategyConfig):
    """What a request has that does not say."""

    n_predict: int = setting(
        256, reload="restart", ge=1, doc="Tokens of an answer whose request asks for no number."
    )
