"""Settings of ``[kv_tier.host]``."""

from pydantic import ByteSize

from gatewayd_hooks.strategy import StrategyConfig, setting


class HostConfig(StrategyConfig):
    """Size of the tier."""

    memory: ByteSize = setting(
        "1GiB",
        reload="restart",
        ge=1,
        validate_default=True,
        doc=(
            "Host memory for KV pages, in bytes or with a unit (`1GiB`), at least 1 byte and one "
            "page; committed as it is first used, but with a GPU at once, as it is pinned."
        ),
    )
