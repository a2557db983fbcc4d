"""Settings of ``[router.prefix]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class PrefixConfig(StrategyConfig):
    """What is alike, and what is busy."""

    prefix_tokens: int = setting(
        256,
        reload="hot",
        ge=1,
        doc="Tokens at the beginning of a prompt that choose its replica.",
    )
    busy_factor: float = setting(
        1.5,
        reload="hot",
        ge=1,
        allow_inf_nan=False,
        doc="A replica is busy above this many times the load of the least loaded one...",
    )
    busy_sequences: int = setting(
        8,
        reload="hot",
        ge=0,
        doc="...and this many sequences more.",
    )
    tokens_per_sequence: int = setting(
        512,
        reload="hot",
        ge=1,
        doc="Queued prompt tokens that weigh as much as one sequence.",
    )
