"""Asks engines how their sequences, pages and prefixes are; keeps what each said last."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Sequence

from gatewayd.engines.replicas.replica import Replica
from gatewayd.engines.replicas.rpc import Asking
from gatewayd.errors import EngineUnavailable, InvalidRequest
from gatewayd_engine.process.inspect_messages import (
    Browse,
    Browsed,
    Inspect,
    Inspected,
    MachineLook,
)

PATIENCE_SECONDS = 0.25
"""For answers of engines; of who says nothing by then it is what was last known."""
_FRESH_SECONDS = 1.0
_BROWSE_SECONDS = 5.0


class EngineInspection:
    """At most one question at a time is on its way to an engine: a slow one is not asked again.

    Args:
        replicas: all of them.
    """

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._numbers = itertools.count(1)
        self._asked: dict[Replica, tuple[int, asyncio.Event]] = {}
        self._last: dict[Replica, Inspected] = {}
        self._browsing: Asking[Browsed] = Asking()
        self._looked = -math.inf

    async def look(self, patience: float) -> dict[int, Inspected]:
        """How the engines are that serve, by their numbers.

        Args:
            patience: seconds that are waited for answers. Of an engine that takes longer it is what
                it said last; one that has said nothing yet is not among them.
        """
        self._looked = time.monotonic()
        waits = []
        for replica in self._replicas:
            if replica.can_serve:
                if replica not in self._asked:
                    self._ask(replica)
                waits.append(asyncio.ensure_future(self._asked[replica][1].wait()))
        if waits:
            await asyncio.wait(waits, timeout=patience)
            for wait in waits:
                wait.cancel()
        return {replica.index: said for replica, said in self._last.items()}

    def machine(self, replica: Replica) -> MachineLook | None:
        """What an engine takes of its machine, as it said last; None if it has said nothing."""
        said = self._last.get(replica)
        return None if said is None else said.machine

    async def refresh(self) -> None:
        """Ask all, unless they were asked within the last second: scrapers may be many."""
        if time.monotonic() - self._looked >= _FRESH_SECONDS:
            await self.look(PATIENCE_SECONDS)

    def _ask(self, replica: Replica) -> None:
        number = next(self._numbers)
        self._asked[replica] = number, asyncio.Event()
        replica.send(Inspect(number))

    async def browse(self, index: int, parent: int, limit: int) -> Browsed:
        """Which cached pages of an engine go on from one.

        Args:
            index: of the engine.
            parent: the page; -1 for the beginnings of prompts.
            limit: pages, at most.

        Raises:
            InvalidRequest: there is no such engine.
            EngineUnavailable: it does not answer.
        """
        if not 0 <= index < len(self._replicas):
            raise InvalidRequest(
                f"engine is {index}; they are 0 to {len(self._replicas) - 1}", param="engine"
            )
        replica, found = self._replicas[index], None
        if replica.can_serve:
            asked = self._browsing.ask(replica, lambda number: Browse(number, parent, limit))
            try:
                found = await asyncio.wait_for(asked, _BROWSE_SECONDS)
            except TimeoutError:
                found = None
        if found is None:
            raise EngineUnavailable(f"engine {index} does not answer; try again", retry_after=2)
        return found

    def answered(self, replica: Replica, event: Inspected) -> None:
        """An engine has said how it is."""
        number, heard = self._asked.get(replica, (0, None))
        if heard is not None and number == event.number:
            self._last[replica] = event
            del self._asked[replica]
            heard.set()

    def browsed(self, event: Browsed) -> None:
        """An engine has said which pages go on from one."""
        self._browsing.answered(event.number, event)

    def lost(self, replica: Replica) -> None:
        """An engine is gone: what it said is over, and it answers nothing any more."""
        self._last.pop(replica, None)
        self._browsing.lost(replica)
        if (asked := self._asked.pop(replica, None)) is not None:
            asked[1].set()
