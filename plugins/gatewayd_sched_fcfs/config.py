"""Settings of ``[scheduler.fcfs]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class FcfsConfig(StrategyConfig):
    """Chunk size of prefill, and reordering by cached prefix."""

    max_prefill_chunk: int = setting(
        0,
        reload="hot",
        ge=0,
        doc=(
            "Maximum number of tokens of one prompt in a step; 0 is the whole token budget; "
            "smaller chunks let several prompts progress at once, larger ones finish the first "
            "sooner."
        ),
    )
    prefix_patience: float = setting(
        0.0,
        reload="hot",
        ge=0,
        doc=(
            "Seconds, from 0, for which a waiting request may be overtaken by requests with a "
            "longer cached prefix; 0 disables this."
        ),
    )
