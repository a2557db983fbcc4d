"""The conversation before an answer: what a request brings, behind what the store has."""

from __future__ import annotations

from typing import Any, NamedTuple

from gatewayd.errors import InvalidRequest
from gatewayd.http import collecting
from gatewayd.http.schema.responses import InputTable
from gatewayd.responses import items, records
from gatewayd.store.database import Database

_INLINE = 2048
"""Items and parts of them: some milliseconds."""


class Asked(NamedTuple):
    """Items.

    Attributes:
        given: those of the request, as they are kept.
        conversation: all of them, in order; not empty.
    """

    given: list[dict[str, Any]]
    conversation: list[dict[str, Any]]


async def asked_of(database: Database, tenant: str, request: InputTable) -> Asked:
    """Gather them, of what a tenant has.

    Raises:
        NotFound: an item or a response that is named is not there.
        InvalidRequest: there is nothing, or an item lacks what its type needs.
        StoreUnavailable: the store cannot be read.
    """
    named: dict[str, dict[str, Any]] = {}
    if wanted := items.referred(request.input):
        named = await database.read(lambda connection: records.items(connection, tenant, wanted))
    if items.size_of(request.input) > _INLINE:
        given = await collecting.apart(lambda: items.kept(request.input, named))
    else:
        given = items.kept(request.input, named)
    before: list[dict[str, Any]] = []
    if (previous := request.previous_response_id) is not None:
        before = await database.read(
            lambda connection: records.conversation(connection, tenant, previous)
        )
    if not (before or given):
        raise InvalidRequest("input is required", param="input")
    return Asked(given, [*before, *given])
