"""Inspection of the engines' sequences, pages and prefix caches, with cached answers."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Sequence

from gatewayd.engines.replicas.replica import Replica
from gatewayd.engines.replicas.rpc import PendingCalls
from gatewayd.errors import EngineUnavailable, InvalidRequest
from gatewayd_engine.process.inspect_messages import (
    Browse,
    Browsed,
    Inspect,
    Inspected,
    MachineStats,
)

PATIENCE_SECONDS = 0.25
"""Timeout for answers of engines; after it their last answer is used."""
_FRESH_SECONDS = 1.0
_BROWSE_SECONDS = 5.0


class EngineInspection:
    """Inspects engines; at most one question per engine is pending, so slow ones are not flooded.

    Args:
        replicas: all replicas.
    """

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._numbers = itertools.count(1)
        self._asked: dict[Replica, tuple[int, asyncio.Event]] = {}
        self._last: dict[Replica, Inspected] = {}
        self._browse_calls: PendingCalls[Browsed] = PendingCalls()
        self._looked = -math.inf

    async def inspect(self, patience: float) -> dict[int, Inspected]:
        """Inspect the serving engines; return answers by replica index.

        Args:
            patience: timeout in seconds. A slower engine is represented by its last answer; one
                without any answer so far is left out.
        """
        # Set before the answers arrive, so that concurrent scrapes do not all wait for them.
        self._looked = time.monotonic()
        waits = []
        for replica in self._replicas:
            if replica.can_serve:
                # Otherwise the question of an earlier call, which timed out, is still pending.
                if replica not in self._asked:
                    self._send_inspect(replica)
                waits.append(asyncio.ensure_future(self._asked[replica][1].wait()))
        if waits:
            # The waits are cancelled, not the questions: the next call uses a late answer.
            await asyncio.wait(waits, timeout=patience)
            for wait in waits:
                wait.cancel()
        return {replica.index: said for replica, said in self._last.items()}

    def machine(self, replica: Replica) -> MachineStats | None:
        """Resource usage of an engine at its last answer; None without any."""
        said = self._last.get(replica)
        return None if said is None else said.machine

    async def refresh(self) -> None:
        """Inspect all engines, at most once per second, since scrapers may be many."""
        if time.monotonic() - self._looked >= _FRESH_SECONDS:
            await self.inspect(PATIENCE_SECONDS)

    def _send_inspect(self, replica: Replica) -> None:
        number = next(self._numbers)
        self._asked[replica] = number, asyncio.Event()
        replica.send(Inspect(number))

    async def browse(self, index: int, parent: int, limit: int) -> Browsed:
        """List the cached pages of an engine that follow a page.

        Args:
            index: index of the replica.
            parent: the preceding page; -1 for first pages of prompts.
            limit: maximum number of pages.

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
            asked = self._browse_calls.call(replica, lambda number: Browse(number, parent, limit))
            try:
                found = await asyncio.wait_for(asked, _BROWSE_SECONDS)
            except TimeoutError:
                found = None
        if found is None:
            raise EngineUnavailable(f"engine {index} does not answer; try again", retry_after=2)
        return found

    def answered(self, replica: Replica, event: Inspected) -> None:
        """Handle an engine's inspection."""
        number, heard = self._asked.get(replica, (0, None))
        if heard is not None and number == event.number:
            self._last[replica] = event
            del self._asked[replica]
            heard.set()

    def browsed(self, event: Browsed) -> None:
        """Handle an engine's list of cached pages."""
        self._browse_calls.resolve(event.number, event)

    def lost(self, replica: Replica) -> None:
        """Discard the state of a lost engine, and cancel questions to it."""
        self._last.pop(replica, None)
        self._browse_calls.lost(replica)
        if (asked := self._asked.pop(replica, None)) is not None:
            # Otherwise `inspect` would wait for an answer until its timeout.
            asked[1].set()
