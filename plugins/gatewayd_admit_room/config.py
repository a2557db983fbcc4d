"""Settings of ``[admission.room]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class RoomConfig(StrategyConfig):
    """Limit on a tenant's part of the queue."""

    tenant_share: float = setting(
        0.5,
        reload="hot",
        gt=0,
        le=1,
        doc=(
            "Fraction of the limits of `[queue]`, above 0 and up to 1, that the waiting requests "
            "of one tenant may use."
        ),
    )
