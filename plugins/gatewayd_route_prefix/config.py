"""Settings of ``[router.prefix]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class PrefixConfig(StrategyConfig):
    """Length of prefixes, and the load limit."""

    prefix_tokens: int = setting(
        256,
        reload="hot",
        ge=1,
        doc="Number of first prompt tokens, at least 1, that determine a prompt's replica.",
    )
    busy_factor: float = setting(
        1.5,
        reload="hot",
        ge=1,
        allow_inf_nan=False,
        doc=(
            "Multiple of the lowest load of all replicas, at least 1, to which `busy_sequences` "
            "is added: a replica with a higher load is busy and gets no requests by prefix."
        ),
    )
    busy_sequences: int = setting(
        8,
        reload="hot",
        ge=0,
        doc=(
            "Number of sequences, from 0, that is added to `busy_factor` times the lowest load: a "
            "replica with a higher load is busy and gets no requests by prefix."
        ),
    )
    tokens_per_sequence: int = setting(
        512,
        reload="hot",
        ge=1,
        doc="Number of queued prompt tokens, at least 1, that count as much as one sequence.",
    )
