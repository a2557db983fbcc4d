"""Hot swap of strategies in all serving engines, atomically: in all of them or in none."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gatewayd.engines.api import ReplicaState
from gatewayd.engines.replicas.replica import Replica
from gatewayd.engines.replicas.rpc import PendingCalls
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.process.messages import SetLimits, Swapped, SwapStrategy
from gatewayd_hooks.strategy import Kind


class FleetSwapRefused(Exception):
    """A strategy cannot be used, and the previous one stays; the message has the reason."""


class EngineSwaps:
    """Swaps strategies of engines, one swap at a time.

    Args:
        replicas: all replicas; those that do not serve now start with the swapped strategies.
    """

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._lock = asyncio.Lock()
        self._calls: PendingCalls[Swapped] = PendingCalls()

    async def swap(
        self, kind: Kind, choices: list[StrategyChoice], *, is_proven: bool = False
    ) -> bool:
        """Replace the strategies of a kind.

        Args:
            kind: the kind.
            choices: the new strategies.
            is_proven: whether they may wait for the next engine if none serves; this allows to
                replace a strategy that crashes engines.

        Returns:
            Whether every engine handed over the previous strategy's state.

        Raises:
            FleetSwapRefused: no engine serves, and they are not proven; or an engine refuses, or
                none survives to confirm.
        """
        # One at a time: if an engine refuses, `before` must still be what all others use.
        async with self._lock:
            serving = [replica for replica in self._replicas if replica.can_serve]
            # Engines that were unloaded will try it when they start, and report what they refuse.
            is_unloaded = all(one.state is ReplicaState.UNLOADED for one in self._replicas)
            may_wait = is_unloaded or (
                is_proven and not all(replica.is_over for replica in self._replicas)
            )
            if not serving and not may_wait:
                raise FleetSwapRefused("no engine is ready to try it; try again")
            before = self._replicas[0].setup.config.choices(kind)
            asked = await self._calls.call_all(
                serving, lambda number: SwapStrategy(number, kind.value, choices)
            )
            answers = [(replica, answer) for replica, answer in asked if answer is not None]
            errors = [answer.error for _, answer in answers if answer.error]
            if errors:
                # Roll back; number 0 is no pending call, so the answers are ignored.
                for replica, answer in answers:
                    if not answer.error:
                        replica.send(SwapStrategy(0, kind.value, before))
                raise FleetSwapRefused(errors[0])
            confirmed = [replica for replica, _ in answers]
            if serving and not confirmed:
                # No engine has confirmed it: the next engines keep the previous strategies.
                names = ", ".join(choice.name for choice in choices) or "nothing"
                raise FleetSwapRefused(f"no engine survived the change of {kind.value} to {names}")
            # Also those that start later, or became ready during the swap and get an update.
            for replica in self._replicas:
                config = replica.setup.config.with_choices(kind, choices)
                # An operator has chosen these strategies: earlier crashes do not count.
                forgiven = [[kind.value, choice.name] for choice in choices]
                replica.adopt(config.without_quarantine(forgiven), is_known=replica in confirmed)
            return bool(confirmed) and all(answer.has_state for _, answer in answers)

    def set_limits(self, limits: SetLimits) -> None:
        """Set the limits of every engine."""
        for replica in self._replicas:
            replica.set_limits(limits)

    def answered(self, event: Swapped) -> None:
        """Handle an engine's answer: a strategy was replaced, or refused."""
        self._calls.resolve(event.number, event)

    def lost(self, replica: Replica) -> None:
        """Cancel questions to a lost engine."""
        self._calls.lost(replica)
