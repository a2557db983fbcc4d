"""Settings of ``[scheduler.fairshare]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class FairshareSettings(StrategyConfig):
    """What the tokens of a tenant cost it."""

    output_cost: float = setting(
        2.0,
        reload="restart",
        gt=0,
        le=100,
        doc="What a generated token costs, in tokens of a prompt.",
    )
    max_chunk: int = setting(
        256, reload="restart", ge=1, doc="Maximum tokens of one sequence per step."
    )
