"""Questions to engines, each with a number by which its answer is found."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from gatewayd.engines.replicas.replica import Replica
from gatewayd_engine.process.messages import Command

AnswerT = TypeVar("AnswerT")


class Asking(Generic[AnswerT]):
    """What has been asked and not been answered yet."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._awaited: dict[int, tuple[Replica, asyncio.Future[AnswerT | None]]] = {}

    async def ask(self, replica: Replica, question: Callable[[int], Command]) -> AnswerT | None:
        """Send a question, made for its number; None if the engine was lost before it answered."""
        number = next(self._numbers)
        future: asyncio.Future[AnswerT | None] = asyncio.get_running_loop().create_future()
        self._awaited[number] = replica, future
        try:
            replica.send(question(number))
            return await future
        finally:
            self._awaited.pop(number, None)

    async def ask_all(
        self, replicas: Sequence[Replica], question: Callable[[int], Command]
    ) -> list[tuple[Replica, AnswerT | None]]:
        """The same question to several at once."""
        answers = await asyncio.gather(*(self.ask(replica, question) for replica in replicas))
        return list(zip(replicas, answers, strict=True))

    def answered(self, number: int, answer: AnswerT) -> None:
        """An engine has answered; what was not asked is ignored."""
        _, future = self._awaited.pop(number, (None, None))
        if future is not None and not future.done():
            future.set_result(answer)

    def lost(self, replica: Replica) -> None:
        """An engine is gone: it answers nothing any more."""
        for other, future in self._awaited.values():
            if other is replica and not future.done():
                future.set_result(None)
