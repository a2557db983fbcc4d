"""Pins cached pages in every engine that serves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gatewayd.engines.replicas.replica import Replica
from gatewayd.engines.replicas.rpc import Asking
from gatewayd.errors import EngineUnavailable
from gatewayd_engine.process.messages import Pinned, PinPrefix


class PinRefused(Exception):
    """Nothing can be pinned; the sentence says why."""


class EnginePins:
    """Each engine has a cache of its own, and is asked for itself.

    Args:
        replicas: all of them.
    """

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._asking: Asking[Pinned] = Asking()

    async def pin_page(self, engine: int, page: int, seconds: float) -> int:
        """Pin a cached page and those before it for a time; with 0, let go of it.

        Returns:
            Tokens up to its end; 0 if it is not cached.

        Raises:
            PinRefused: the eviction in use knows no pins.
            EngineUnavailable: the engine does not serve.
        """
        serving = [r for r in self._replicas if r.index == engine and r.can_serve]
        pinned = await self._ask(serving, lambda number: PinPrefix(number, b"", seconds, page=page))
        return pinned[engine]

    async def pin(self, prompt: Sequence[int], seconds: float) -> dict[int, int]:
        """Pin what is cached of a prompt for a time; with 0, let go of it.

        Args:
            prompt: token ids; none with 0 seconds lets go of everything.
            seconds: from now on.

        Returns:
            Tokens that are pinned, by the number of the engine.

        Raises:
            PinRefused: the eviction in use knows no pins.
            EngineUnavailable: no engine serves.
        """
        ids = np.array(prompt, np.int32).tobytes()
        serving = [replica for replica in self._replicas if replica.can_serve]
        return await self._ask(serving, lambda number: PinPrefix(number, ids, seconds))

    async def _ask(
        self, serving: Sequence[Replica], question: Callable[[int], PinPrefix]
    ) -> dict[int, int]:
        answers = await self._asking.ask_all(serving, question)
        told = {replica.index: answer for replica, answer in answers if answer is not None}
        if not told:
            raise EngineUnavailable("no engine is ready; try again", retry_after=2)
        for answer in told.values():
            if answer.error:
                raise PinRefused(answer.error)
        return {index: answer.tokens for index, answer in told.items()}

    def answered(self, event: Pinned) -> None:
        """An engine has pinned what is cached of a prompt, or cannot."""
        self._asking.answered(event.number, event)

    def lost(self, replica: Replica) -> None:
        """An engine is gone: it answers nothing any more."""
        self._asking.lost(replica)
