"""Settings of ``[routes.NAME.edge_cloud]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class EdgeCloudConfig(StrategyConfig):
    """How long requests wait at home."""

    most_seconds: float = setting(
        2.0,
        reload="restart",
        ge=0,
        le=86_400,
        doc="Forecast wait in a local target's queue, in seconds, above which a remote target is "
        "preferred.",
    )
