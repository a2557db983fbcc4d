"""Settings of ``[kv_codec.fp8]``."""

from typing import Literal

from gatewayd_hooks.strategy import StrategyConfig, setting


class Fp8CodecConfig(StrategyConfig):
    """Float format, and whether there are scales."""

    format: Literal["e4m3", "e5m2"] = setting(
        "e4m3",
        reload="restart",
        doc="8-bit float format: `e4m3` has higher precision, `e5m2` a larger range.",
    )
    scale: Literal["token", "none"] = setting(
        "token",
        reload="restart",
        doc=(
            "Whether each token and head has a scale (`token`, two bytes more per record), or "
            "numbers are stored unscaled (`none`), saturating at the largest of the format."
        ),
    )
