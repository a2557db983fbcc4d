"""Settings of ``[kv_tier.disk]``."""

from pydantic import ByteSize

from gatewayd_hooks.strategy import StrategyConfig, setting


class DiskConfig(StrategyConfig):
    """Where pages are kept, and how many."""

    path: str = setting(
        "",
        reload="restart",
        is_path=True,
        doc="Folder for pages, one for each daemon; each engine makes its own in it. Must be set.",
    )
    size: ByteSize = setting(
        "10GiB",
        reload="restart",
        ge=1 << 20,
        validate_default=True,
        doc="Size of each engine's folder; the oldest pages go first.",
    )
    memory: ByteSize = setting(
        "256MiB",
        reload="restart",
        ge=1,
        validate_default=True,
        doc="Memory for pages that were read ahead, and as much for those that wait to be written.",
    )
