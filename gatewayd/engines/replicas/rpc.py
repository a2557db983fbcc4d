"""Remote procedure calls to engines: numbered questions and their answers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from gatewayd.engines.replicas.replica import Replica
from gatewayd_engine.process.messages import Command

AnswerT = TypeVar("AnswerT")


class PendingCalls(Generic[AnswerT]):
    """Pending questions to engines."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._awaited: dict[int, tuple[Replica, asyncio.Future[AnswerT | None]]] = {}

    async def call(self, replica: Replica, question: Callable[[int], Command]) -> AnswerT | None:
        """Send a question, built for its number; None if the engine is lost before the answer."""
        number = next(self._numbers)
        future: asyncio.Future[AnswerT | None] = asyncio.get_running_loop().create_future()
        self._awaited[number] = replica, future
        try:
            replica.send(question(number))
            return await future
        finally:
            # Also if the caller is cancelled, by a timeout for example.
            self._awaited.pop(number, None)

    async def call_all(
        self, replicas: Sequence[Replica], question: Callable[[int], Command]
    ) -> list[tuple[Replica, AnswerT | None]]:
        """Ask several engines the same question concurrently."""
        answers = await asyncio.gather(*(self.call(replica, question) for replica in replicas))
        return list(zip(replicas, answers, strict=True))

    def resolve(self, number: int, answer: AnswerT) -> None:
        """Resolve a question with its answer; unknown numbers are ignored."""
        _, future = self._awaited.pop(number, (None, None))
        if future is not None and not future.done():
            future.set_result(answer)

    def lost(self, replica: Replica) -> None:
        """Resolve all questions to a lost engine with None."""
        # `set_result` schedules callers without running them, so the dict is not modified here.
        for other, future in self._awaited.values():
            if other is replica and not future.done():
                future.set_result(None)
