"""Settings of ``[drafter.lookahead]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class LookaheadConfig(StrategyConfig):
    """How far ahead the model looks, and what is kept of it."""

    window: int = setting(
        4, reload="hot", ge=1, le=32, doc="Places ahead for which the model is asked."
    )
    length: int = setting(4, reload="hot", ge=2, le=16, doc="Tokens of an n-gram.")
    candidates: int = setting(
        2, reload="hot", ge=1, le=16, doc="N-grams that are tried in one step."
    )
    use_prompt: bool = setting(
        True, reload="hot", doc="Whether n-grams are also taken from what the sequence has."
    )
    max_ngrams: int = setting(
        4096, reload="hot", ge=16, le=1_000_000, doc="N-grams kept of one sequence."
    )
