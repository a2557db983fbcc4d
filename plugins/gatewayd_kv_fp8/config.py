"""Settings of ``[kv_codec.fp8]``."""

from typing import Literal

from gatewayd_hooks.strategy import StrategyConfig, setting


class Fp8CodecConfig(StrategyConfig):
    """Which eight bits, and what is written beside them."""

    format: Literal["e4m3", "e5m2"] = setting(
        "e4m3", reload="restart", doc="Bits of exponent and mantissa: more digits, or more reach."
    )
    scale: Literal["token", "none"] = setting(
        "token",
        reload="restart",
        doc="Whether each token's head has a scale (`token`, two bytes more), or numbers are "
        "written as they are (`none`), those beyond the format's largest as that.",
    )
