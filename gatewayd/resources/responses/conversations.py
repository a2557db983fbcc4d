"""The conversation before an answer: what a request brings, behind what the store has."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from gatewayd.errors import InvalidRequest
from gatewayd.fairness.fair_queue import FairQueue
from gatewayd.http import body_threads
from gatewayd.http.schema.responses import InputTable
from gatewayd.resources.responses import items, records
from gatewayd.resources.responses.previous_responses import EMPTY, Cut, PreviousResponses, chain
from gatewayd.resources.responses.records import StoredOutput
from gatewayd.resources.responses.truncation import pinned
from gatewayd.store.database import Database

_INLINE = 2048
"""Items and parts of them: some milliseconds."""
_LOOKED_AT = 16
"""Times the limit: of responses in which items are looked for."""
_SLOTS = 4
"""Long conversations from the store that are in memory at once."""
_SHORT = 256 << 10
"""Bytes of one that need no slot once they are read."""
_MOST_WAITING = 1024


class PriorConversation(NamedTuple):
    """Items.

    Attributes:
        given: those of the request, as they are kept.
        before: those behind which it goes on.
    """

    given: list[dict[str, Any]]
    before: PreviousResponses

    @property
    def conversation(self) -> list[dict[str, Any]]:
        """All of them, in order; not empty."""
        return [*self.before.items, *self.given]

    def cut_at(self, start: int) -> Cut | None:
        """What to keep of where the conversation began; see ``PreviousResponses``."""
        return self.before.cut_at(start, pinned(self.conversation, start)) if start else None


class Conversations:
    """Gathers them, of what tenants have; long ones are in memory in turn, by tenant.

    Attributes:
        queue: for these.

    Args:
        database: where they are kept.
        most_bytes: that may be brought from there, as they are stored.
    """

    def __init__(self, database: Database, most_bytes: int) -> None:
        self._database = database
        self._most_bytes = most_bytes
        self.queue = FairQueue("stored conversations", lambda: _SLOTS, most_waiting=_MOST_WAITING)

    @asynccontextmanager
    async def asked(self, tenant: str, request: InputTable) -> AsyncIterator[PriorConversation]:
        """Gather one, for the time of the block; whoever keeps it longer keeps its memory.

        Raises:
            NotFound: an item or a response that is named is not there.
            InvalidRequest: there is nothing, or an item lacks what its type needs, or there is more
                in the store than may be brought from there.
            NotAdmitted: too many wait.
            StoreUnavailable: the store cannot be read.
        """
        if not needs_store(request):
            yield await self._gather(tenant, request)
            return
        with await self.queue.acquire(tenant) as slot:
            asked = await self._gather(tenant, request)
            if asked.before.num_bytes <= _SHORT:
                slot.release()
            yield asked

    async def _gather(self, tenant: str, request: InputTable) -> PriorConversation:
        named: dict[str, StoredOutput] = {}
        if wanted := items.referred(request.input):
            named = await self._database.read(
                lambda connection: records.items(
                    connection, tenant, wanted, most_bytes=_LOOKED_AT * self._most_bytes
                )
            )
            self._check(request, named)
        stored = {item_id: said.item for item_id, said in named.items()}
        if items.size_of(request.input) > _INLINE:
            given = await body_threads.apart(lambda: items.kept(request.input, stored))
        else:
            given = items.kept(request.input, stored)
        before = EMPTY
        if (previous := request.previous_response_id) is not None:
            before = await self._database.read(
                lambda connection: chain(
                    connection,
                    tenant,
                    previous,
                    most_bytes=self._most_bytes,
                    is_cut=request.truncation == "auto",
                )
            )
        if not (before.parts or before.pinned or given):
            raise InvalidRequest("input is required", param="input")
        return PriorConversation(given, before)

    def _check(self, request: InputTable, named: dict[str, StoredOutput]) -> None:
        """One that is named a thousand times is there a thousand times."""
        times = Counter(items.references(request.input))
        num_bytes = sum(named[item_id].num_bytes * count for item_id, count in times.items())
        if num_bytes > self._most_bytes:
            raise InvalidRequest(
                f"the stored items that input names have {num_bytes} bytes; the maximum is "
                f"{self._most_bytes}: name fewer",
                param="input",
            )


def needs_store(request: InputTable) -> bool:
    """Whether a conversation goes on behind something that is stored."""
    return request.previous_response_id is not None or bool(items.referred(request.input))
