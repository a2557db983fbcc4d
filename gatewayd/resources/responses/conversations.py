"""Conversation of a request: its input after the stored previous responses and items."""

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
from gatewayd.resources.responses.previous_responses import (
    EMPTY,
    PreviousResponses,
    TruncationPoint,
    chain,
)
from gatewayd.resources.responses.records import StoredOutput
from gatewayd.resources.responses.truncation import pinned
from gatewayd.store.database import Database

_INLINE = 2048
"""Items and parts that are processed inline: some milliseconds."""
_LOOKED_AT = 16
"""Factor on the limit: bytes of responses that are searched for items."""
_SLOTS = 4
"""Long stored conversations that are in memory at once."""
_SHORT = 256 << 10
"""Bytes of a conversation that needs no slot once it is read."""
_MOST_WAITING = 1024


class PriorConversation(NamedTuple):
    """Items of a conversation.

    Attributes:
        given: items of the request, as they are stored.
        before: stored items that precede them.
    """

    given: list[dict[str, Any]]
    before: PreviousResponses

    @property
    def conversation(self) -> list[dict[str, Any]]:
        """All items, in order; not empty."""
        return [*self.before.items, *self.given]

    def cut_at(self, start: int) -> TruncationPoint | None:
        """The begin of the truncated conversation; see ``PreviousResponses``."""
        return self.before.cut_at(start, pinned(self.conversation, start)) if start else None


class Conversations:
    """Loads conversations; long ones queue for memory, fairly by tenant.

    Attributes:
        queue: queue for long ones.

    Args:
        database: database of responses.
        most_bytes: maximum of stored bytes in a request's conversation.
    """

    def __init__(self, database: Database, most_bytes: int) -> None:
        self._database = database
        self._most_bytes = most_bytes
        self.queue = FairQueue("stored conversations", lambda: _SLOTS, most_waiting=_MOST_WAITING)

    @asynccontextmanager
    async def loaded(self, tenant: str, request: InputTable) -> AsyncIterator[PriorConversation]:
        """Load a conversation for the block, during which its memory is accounted for.

        Raises:
            NotFound: a referenced item or response does not exist.
            InvalidRequest: the input is empty, or an item lacks a field of its type, or the stored
                part exceeds the maximum.
            NotAdmitted: too many requests wait.
            StoreUnavailable: the store cannot be read.
        """
        # The request's own items are accounted for as its body.
        if not needs_store(request):
            yield await self._gather(tenant, request)
            return
        with await self.queue.acquire(tenant) as slot:
            asked = await self._gather(tenant, request)
            # The length is known only now; a short one does not keep others waiting.
            if asked.before.num_bytes <= _SHORT:
                slot.release()
            yield asked

    async def _gather(self, tenant: str, request: InputTable) -> PriorConversation:
        named: dict[str, StoredOutput] = {}
        # Referenced items are read once each; repetitions count before they are copied.
        if wanted := items.referenced_ids(request.input):
            named = await self._database.read(
                lambda connection: records.items(
                    connection, tenant, wanted, most_bytes=_LOOKED_AT * self._most_bytes
                )
            )
            self._check(request, named)
        stored = {item_id: said.item for item_id, said in named.items()}
        if items.size_of(request.input) > _INLINE:
            given = await body_threads.run_in_thread(
                lambda: items.stored_items(request.input, stored)
            )
        else:
            given = items.stored_items(request.input, stored)
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
        """Check the size of referenced items, each counted as often as it is referenced."""
        times = Counter(items.references(request.input))
        num_bytes = sum(named[item_id].num_bytes * count for item_id, count in times.items())
        if num_bytes > self._most_bytes:
            raise InvalidRequest(
                f"the stored items that input names have {num_bytes} bytes; the maximum is "
                f"{self._most_bytes}: name fewer",
                param="input",
            )


def needs_store(request: InputTable) -> bool:
    """Whether a conversation includes stored responses or items."""
    return request.previous_response_id is not None or bool(items.referenced_ids(request.input))
