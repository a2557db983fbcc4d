"""Settings of ``[preemption.swap]``."""

from pydantic import ByteSize

from gatewayd_hooks.strategy import StrategyConfig, setting


class SwapConfig(StrategyConfig):
    """Limit on host memory."""

    memory: ByteSize = setting(
        "1GiB",
        reload="hot",
        ge=1,
        validate_default=True,
        doc=(
            "Host memory for swapped sequences, in bytes or with a unit (`1GiB`), at least 1 "
            "byte; sequences that do not fit are recomputed."
        ),
    )
