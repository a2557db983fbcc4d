"""Settings of ``[kv_codec.int4]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class Int4CodecConfig(StrategyConfig):
    """Whether a head's numbers are mixed before they are written."""

    rotate: bool = setting(
        True,
        reload="restart",
        doc="Whether each head is multiplied by a Hadamard matrix first, which spreads what stands "
        "out over all its numbers.",
    )
