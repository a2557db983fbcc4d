"""Hot swap: in all engines or none, whatever becomes of them meanwhile."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from gatewayd.engines.api import ReplicaState
from gatewayd.engines.hot_swap import EngineSwaps, FleetSwapRefused
from gatewayd.engines.replicas.replica import Replica
from gatewayd.engines.replicas.setup import EngineSetup
from gatewayd_engine.process.config import EngineConfig, StrategyChoice
from gatewayd_engine.process.messages import Command, Swapped, SwapStrategy
from gatewayd_hooks.strategy import Kind

OLD, NEW = StrategyChoice("old"), StrategyChoice("new")
CONFIG = EngineConfig(
    model="x",
    scheduler=StrategyChoice("fcfs"),
    prefix_cache=None,
    eviction=StrategyChoice("lru"),
    preemption=StrategyChoice("recompute"),
    drafter=OLD,
    quarantined=[["drafter", "new"]],
)


class Engine:
    """An engine that dies of a swap, refuses it or makes it, as its part of a replica sees."""

    is_over = False

    def __init__(self, fate: str) -> None:
        self.setup = EngineSetup(CONFIG, 0)
        self.swaps: EngineSwaps
        self.told: list[list[StrategyChoice]] = []
        self._fate = fate
        self.can_serve = fate != "restarts"
        self.state = ReplicaState.READY if self.can_serve else ReplicaState.RESTARTING

    def send(self, command: Command) -> None:
        """Answer as it must, a little later."""
        assert isinstance(command, SwapStrategy)
        self.told.append(command.choices)
        if command.number:
            asyncio.get_running_loop().call_soon(self._answer, command.number)

    def adopt(self, config: EngineConfig, *, is_known: bool = False) -> None:
        """See ``Replica``."""
        self.setup.config = config

    def _answer(self, number: int) -> None:
        if self._fate == "dies":
            self.can_serve = False
            self.swaps.lost(cast(Replica, self))
        else:
            error = "it is bad" if self._fate == "refuses" else ""
            self.swaps.answered(Swapped(number, error, has_state=not error))


def _swap(*fates: str, is_proven: bool = False) -> tuple[list[Engine], bool | str]:
    engines = [Engine(fate) for fate in fates]
    swaps = EngineSwaps(cast(list[Replica], engines))
    for engine in engines:
        engine.swaps = swaps
    try:
        return engines, asyncio.run(swaps.swap(Kind.DRAFTER, [NEW], is_proven=is_proven))
    except FleetSwapRefused as refusal:
        return engines, str(refusal)


@pytest.mark.parametrize("fates", [("dies",), ("dies", "dies")])
def test_a_strategy_that_no_engine_survives_is_not_adopted(fates: tuple[str, ...]) -> None:
    engines, answer = _swap(*fates)
    assert answer == "no engine survived the change of drafter to new"
    for engine in engines:
        assert engine.setup.start_config().choices(Kind.DRAFTER) == [OLD]
        assert engine.setup.config.quarantined == [["drafter", "new"]]


def test_the_next_engine_has_what_another_has_confirmed() -> None:
    engines, answer = _swap("dies", "swaps")
    assert answer is True
    assert [engine.setup.start_config().choices(Kind.DRAFTER) for engine in engines] == [
        [NEW],
        [NEW],
    ]


def test_without_an_engine_only_what_is_proven_waits_for_the_next() -> None:
    engines, answer = _swap("restarts", "restarts")
    assert answer == "no engine is ready to try it; try again"
    assert engines[0].setup.start_config().choices(Kind.DRAFTER) == [OLD]
    engines, answer = _swap("restarts", "restarts", is_proven=True)
    assert answer is False
    assert [engine.setup.start_config().choices(Kind.DRAFTER) for engine in engines] == [
        [NEW],
        [NEW],
    ]
    assert not any(engine.told for engine in engines)


def test_what_one_refuses_is_taken_back_everywhere() -> None:
    engines, answer = _swap("dies", "refuses", "swaps")
    assert answer == "it is bad"
    assert [engine.told for engine in engines] == [[[NEW]], [[NEW]], [[NEW], [OLD]]]
    assert all(engine.setup.config.choices(Kind.DRAFTER) == [OLD] for engine in engines)
