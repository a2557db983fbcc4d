"""Settings of ``[drafter.lookahead]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class LookaheadConfig(StrategyConfig):
    """Sizes of the lookahead window and of the n-gram pool."""

    window: int = setting(
        4,
        reload="hot",
        ge=1,
        le=32,
        doc="Number of later positions, from 1 to 32, that each step computes in addition.",
    )
    length: int = setting(
        4, reload="hot", ge=2, le=16, doc="Length of an n-gram in tokens, from 2 to 16."
    )
    candidates: int = setting(
        2,
        reload="hot",
        ge=1,
        le=16,
        doc="Number of n-grams, from 1 to 16, that are verified in one step.",
    )
    use_prompt: bool = setting(
        True,
        reload="hot",
        doc="Whether n-grams are also taken from the prompt and the answer so far.",
    )
    max_ngrams: int = setting(
        4096,
        reload="hot",
        ge=16,
        le=1_000_000,
        doc="Maximum of n-grams stored for one sequence, from 16 to 1000000.",
    )
