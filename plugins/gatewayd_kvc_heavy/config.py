"""Settings of ``[kv_compression.heavy]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class HeavyConfig(StrategyConfig):
    """Size of the selection, and when attention is sparse."""

    budget: float = setting(
        0.125,
        gt=0.0,
        le=1.0,
        reload="restart",
        doc=(
            "Fraction of a sequence's tokens, above 0 and up to 1, that a sparse step attends to; "
            "1 is all."
        ),
    )
    dense_layers: int = setting(
        1,
        ge=0,
        reload="restart",
        doc="Number of first layers of the model that attend to all tokens.",
    )
    at_least: int = setting(
        256,
        ge=1,
        reload="restart",
        doc="Length in tokens, at least 1, up to which a sequence attends to all of them.",
    )
    warm_steps: int = setting(
        32,
        ge=1,
        reload="restart",
        doc="Number of first decode steps of a sequence, at least 1, that attend to all tokens.",
    )
    every: int = setting(
        16,
        ge=1,
        reload="restart",
        doc=(
            "Interval in tokens, at least 1, at which a decode step attends to all tokens; 1 "
            "disables sparsity."
        ),
    )
