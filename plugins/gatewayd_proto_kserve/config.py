"""Settings of ``[protocol.kserve]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class KserveConfig(StrategyConfig):
    """The port and its limits."""

    host: str = setting(
        "127.0.0.1",
        reload="restart",
        min_length=1,
        doc="Address to listen on, without TLS; beyond this machine only with API keys.",
    )
    port: int = setting(
        8001, reload="restart", ge=0, le=65535, doc="TCP port; 0 lets the system choose one."
    )
    message_bytes: int = setting(
        4 * 2**20,
        reload="restart",
        ge=2**10,
        le=2**30,
        doc="Largest request in bytes, decompressed; it is in memory before its key is checked.",
    )
    concurrency: int = setting(
        256,
        reload="restart",
        ge=1,
        le=2**16,
        doc="Requests at a time, open streams included; others get `RESOURCE_EXHAUSTED`.",
    )
    connections: int = setting(
        256, reload="restart", ge=1, le=2**16, doc="Connections at a time; others are closed."
    )
    idle_seconds: float = setting(
        300.0,
        reload="restart",
        gt=0,
        le=86_400,
        doc="Time in which a call must send its request, an open stream its next one, and"
        " after which connections without calls are closed.",
    )
