"""Settings of ``[protocol.tgi]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class TgiSettings(StrategyConfig):
    """What a request has that does not say."""

    max_new_tokens: int = setting(
        100, reload="restart", ge=1, doc="Tokens of an answer whose request asks for no number."
    )
