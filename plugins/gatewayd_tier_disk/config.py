"""Settings of ``[kv_tier.disk]``."""

from pydantic import ByteSize

from gatewayd_hooks.strategy import StrategyConfig, setting


class DiskConfig(StrategyConfig):
    """Location and size of the storage."""

    path: str = setting(
        "",
        reload="restart",
        is_path=True,
        doc=(
            "Folder for KV pages, required and exclusive to one daemon; each engine of each "
            "model creates its own subfolder."
        ),
    )
    size: ByteSize = setting(
        "10GiB",
        reload="restart",
        ge=1 << 20,
        validate_default=True,
        doc=(
            "Maximum size of each engine's folder, in bytes or with a unit (`10GiB`), at least 1 "
            "MiB; the oldest pages are evicted first."
        ),
    )
    memory: ByteSize = setting(
        "256MiB",
        reload="restart",
        ge=1,
        validate_default=True,
        doc=(
            "Memory for pages read ahead, and as much again for pages waiting to be written, in "
            "bytes or with a unit (`256MiB`), at least 1 byte."
        ),
    )
