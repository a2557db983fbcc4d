"""Settings of ``[drafter.draft_model]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class DraftModelConfig(StrategyConfig):
    """Draft model, and when drafting stops."""

    model: str = setting(
        "",
        reload="restart",
        is_path=True,
        doc=(
            "Folder of the draft model; empty for the served model's folder with the suffix "
            "`-draft`."
        ),
    )
    min_confidence: float = setting(
        0.3,
        reload="hot",
        ge=0,
        le=1,
        doc=(
            "Drafting stops at a token to which the draft model gives a lower probability, from 0 "
            "to 1."
        ),
    )
    max_catch_up: int = setting(
        512,
        reload="hot",
        ge=16,
        le=1_000_000,
        doc=(
            "Maximum of prompt tokens that the draft model computes in one step, from 16 to "
            "1000000."
        ),
    )
