"""Settings of ``[kv_tier.host]``."""

from pydantic import ByteSize

from gatewayd_hooks.strategy import StrategyConfig, setting


class HostConfig(StrategyConfig):
    """How much is kept."""

    memory: ByteSize = setting(
        "1GiB",
        reload="restart",
        ge=1,
        validate_default=True,
        doc="Host memory for pages, taken as it is first used; beside a GPU at once.",
    )
