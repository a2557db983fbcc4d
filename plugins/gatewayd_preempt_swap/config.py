"""Settings of ``[preemption.swap]``."""

from pydantic import ByteSize

from gatewayd_hooks.strategy import StrategyConfig, setting


class SwapConfig(StrategyConfig):
    """How much may be kept."""

    memory: ByteSize = setting(
        "1GiB",
        reload="hot",
        ge=1,
        validate_default=True,
        doc="Host memory for swapped sequences; who finds no room there computes again.",
    )
