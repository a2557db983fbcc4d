"""Pins of cached prefix pages in the serving engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gatewayd.engines.replicas.replica import Replica
from gatewayd.engines.replicas.rpc import PendingCalls
from gatewayd.errors import EngineUnavailable
from gatewayd_engine.process.messages import Pinned, PinPrefix


class PinRefused(Exception):
    """No pages were pinned; the message has the reason."""


class EnginePins:
    """Pins pages in engines, each of which has a prefix cache of its own.

    Args:
        replicas: all replicas.
    """

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._calls: PendingCalls[Pinned] = PendingCalls()

    async def pin_page(self, engine: int, page: int, seconds: float) -> int:
        """Pin a cached page and its ancestors for a time; with 0, unpin them.

        Returns:
            Number of tokens up to the page's end; 0 if it is not cached.

        Raises:
            PinRefused: the eviction strategy does not support pins.
            EngineUnavailable: the engine does not serve.
        """
        serving = [r for r in self._replicas if r.index == engine and r.can_serve]
        pinned = await self._call_all(
            serving, lambda number: PinPrefix(number, b"", seconds, page=page)
        )
        return pinned[engine]

    async def pin(self, prompt: Sequence[int], seconds: float) -> dict[int, int]:
        """Pin the cached prefix of a prompt for a time; with 0, unpin it.

        Args:
            prompt: token ids; empty with 0 seconds unpins everything.
            seconds: duration from now on.

        Returns:
            Number of pinned tokens, by replica index.

        Raises:
            PinRefused: the eviction strategy does not support pins.
            EngineUnavailable: no engine serves.
        """
        ids = np.array(prompt, np.int32).tobytes()
        serving = [replica for replica in self._replicas if replica.can_serve]
        return await self._call_all(serving, lambda number: PinPrefix(number, ids, seconds))

    async def _call_all(
        self, serving: Sequence[Replica], question: Callable[[int], PinPrefix]
    ) -> dict[int, int]:
        answers = await self._calls.call_all(serving, question)
        answered = {replica.index: answer for replica, answer in answers if answer is not None}
        if not answered:
            raise EngineUnavailable("no engine is ready; try again", retry_after=2)
        for answer in answered.values():
            if answer.error:
                raise PinRefused(answer.error)
        return {index: answer.tokens for index, answer in answered.items()}

    def answered(self, event: Pinned) -> None:
        """Handle an engine's answer to a pin."""
        self._calls.resolve(event.number, event)

    def lost(self, replica: Replica) -> None:
        """Cancel questions to a lost engine."""
        self._calls.lost(replica)
