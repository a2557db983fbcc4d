"""Settings of ``[kv_compression.predictor]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class PredictorConfig(StrategyConfig):
    """What is attended to, when, and who foresees it."""

    budget: float = setting(
        0.125, gt=0.0, le=1.0, reload="restart", doc="Part of its places that a token attends to."
    )
    dense_layers: int = setting(
        1, ge=0, reload="restart", doc="First layers of the model, which attend to all."
    )
    at_least: int = setting(
        256, ge=1, reload="restart", doc="Tokens of a sequence up to which it attends to all."
    )
    warm_steps: int = setting(
        32,
        ge=1,
        reload="restart",
        doc="Decoding steps of a sequence, its first, that attend to all.",
    )
    every: int = setting(
        16,
        ge=1,
        reload="restart",
        doc="Each so many tokens one attends to all, and places are chosen; 1 is all of them.",
    )
    network: str = setting(
        "",
        reload="restart",
        is_path=True,
        doc="Folder of the network; empty for the one beside the model.",
    )
