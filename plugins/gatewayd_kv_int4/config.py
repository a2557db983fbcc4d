"""Settings of ``[kv_codec.int4]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class Int4CodecConfig(StrategyConfig):
    """Whether heads are rotated before quantization."""

    rotate: bool = setting(
        True,
        reload="restart",
        doc=(
            "Whether each head is multiplied by a Hadamard matrix before quantization, which "
            "spreads outliers over all its numbers."
        ),
    )
