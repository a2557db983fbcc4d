"""Replaces a strategy in every engine that serves: in all of them or in none."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gatewayd.engines.replicas.replica import Replica
from gatewayd.engines.replicas.rpc import Asking
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.process.messages import SetLimits, Swapped, SwapStrategy
from gatewayd_hooks.strategy import Kind


class FleetSwapRefused(Exception):
    """A strategy cannot be used, and the one before goes on; the sentence says why."""


class EngineSwaps:
    """One swap at a time.

    Args:
        replicas: all of them; those that do not serve now start with what was swapped.
    """

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._lock = asyncio.Lock()
        self._asking: Asking[Swapped] = Asking()

    async def swap(
        self, kind: Kind, choices: list[StrategyChoice], *, is_proven: bool = False
    ) -> bool:
        """Fill a slot with other strategies.

        Args:
            kind: the slot.
            choices: what fills it.
            is_proven: whether they may wait for the next engine if none serves; that is how one
                gets rid of a strategy in which engines die.

        Returns:
            Whether every engine handed the state over.

        Raises:
            SwapRefused: no engine serves, and they are not proven; or one of them refuses, or
                none lives to confirm it.
        """
        async with self._lock:
            serving = [replica for replica in self._replicas if replica.can_serve]
            may_wait = is_proven and not all(replica.is_over for replica in self._replicas)
            if not serving and not may_wait:
                raise FleetSwapRefused("no engine is ready to try it; try again")
            before = self._replicas[0].setup.config.choices(kind)
            asked = await self._asking.ask_all(
                serving, lambda number: SwapStrategy(number, kind.value, choices)
            )
            answers = [(replica, answer) for replica, answer in asked if answer is not None]
            errors = [answer.error for _, answer in answers if answer.error]
            if errors:
                for replica, answer in answers:
                    if not answer.error:
                        replica.send(SwapStrategy(0, kind.value, before))
                raise FleetSwapRefused(errors[0])
            told = [replica for replica, _ in answers]
            if serving and not told:
                # Nobody has shown that it can be used: the next engines keep what was before.
                names = ", ".join(choice.name for choice in choices) or "nothing"
                raise FleetSwapRefused(f"no engine survived the change of {kind.value} to {names}")
            for replica in self._replicas:
                config = replica.setup.config.with_choices(kind, choices)
                forgiven = [[kind.value, choice.name] for choice in choices]
                replica.adopt(config.without_quarantine(forgiven), is_known=replica in told)
            return bool(told) and all(answer.has_state for _, answer in answers)

    def limit(self, limits: SetLimits) -> None:
        """Change limits of every engine."""
        for replica in self._replicas:
            replica.limit(limits)

    def answered(self, event: Swapped) -> None:
        """An engine has replaced a strategy, or refused to."""
        self._asking.answered(event.number, event)

    def lost(self, replica: Replica) -> None:
        """An engine is gone: it answers nothing any more."""
        self._asking.lost(replica)
