"""Settings of ``[scheduler.lottery]``."""

from typing import Annotated

from gatewayd_hooks.strategy import StrategyConfig, setting
from pydantic import Field

Tickets = Annotated[int, Field(ge=1, le=1_000_000)]


class LotteryConfig(StrategyConfig):
    """Who draws how often."""

    tickets: tuple[Tickets, Tickets, Tickets] = setting(
        (10, 5, 1), reload="restart", doc="Tickets of a realtime, a standard and a batch sequence."
    )
    seed: int = setting(0, reload="restart", doc="Seed of the draws.")
