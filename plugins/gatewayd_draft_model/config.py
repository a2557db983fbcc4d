"""Settings of ``[drafter.draft_model]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class DraftModelConfig(StrategyConfig):
    """Which model guesses, and when it stops."""

    model: str = setting(
        "",
        reload="restart",
        is_path=True,
        doc="Folder of the smaller model; empty for the one beside the served model, -draft.",
    )
    min_confidence: float = setting(
        0.3,
        reload="hot",
        ge=0,
        le=1,
        doc="Guessing ends at a token to which the smaller model gives less probability.",
    )
    max_catch_up: int = setting(
        512,
        reload="hot",
        ge=16,
        le=1_000_000,
        doc="Tokens of a prompt that the smaller model reads in one step.",
    )
