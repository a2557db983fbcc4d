"""Settings of ``[admission.room]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class RoomConfig(StrategyConfig):
    """How much of the queue is one tenant's."""

    tenant_share: float = setting(
        0.5,
        reload="hot",
        gt=0,
        le=1,
        doc="Part of the caps of `[queue]` that the waiting requests of one tenant may take.",
    )
