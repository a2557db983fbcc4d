"""Settings of ``[quantizer.fp8]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class Fp8Config(StrategyConfig):
    """A checkpoint says itself how it is to be read."""

    packed: bool = setting(
        False,
        reload="restart",
        doc=(
            "On a CPU keep a byte for each number, and make floats of them for each product: less"
            " memory, slower."
        ),
    )
