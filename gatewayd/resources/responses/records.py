"""Rows of responses: queries and updates, reading large columns only as needed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Column, Connection, Text, delete, func, insert, select, type_coerce, update

from gatewayd.errors import InvalidRequest, NotFound
from gatewayd.resources.responses.output import Cuts
from gatewayd.resources.responses.previous_responses import TruncationPoint
from gatewayd.store.paging import Page
from gatewayd.store.tables import responses

RUNNING = ("queued", "in_progress")
_ITEM = re.compile(r"(?:msg|fc|rs)_([0-9a-f]{32})")
_LAST = 256
"""Responses to search for an item; fewer run at once."""
_LOST = {"code": "server_error", "message": "the daemon ended before the response was complete"}
_TOLD = "gateway_told"
_CUT = "gateway_cut"
"""Fields of a stored body that are not fields of responses."""


class StoredResponse(NamedTuple):
    """A response that has ended, as stored.

    Attributes:
        body: the response object.
        cuts: delta boundaries of each item of its output; None if it cannot have been followed.
        is_broken: whether the last item was left open.
        chain_cut: begin of its truncated conversation; None if it is whole.
    """

    body: dict[str, Any]
    cuts: Sequence[Cuts] | None = None
    is_broken: bool = False
    chain_cut: TruncationPoint | None = None


class StoredOutput(NamedTuple):
    """An output item, and its stored size in bytes."""

    item: dict[str, Any]
    num_bytes: int


class _Named(msgspec.Struct):
    id: str


class _Output(msgspec.Struct):
    output: list[msgspec.Raw]


_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_item_of = msgspec.json.Decoder(dict[str, Any]).decode
_named = msgspec.json.Decoder(_Named).decode
_output = msgspec.json.Decoder(_Output).decode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def add(
    connection: Connection,
    tenant: str,
    body: dict[str, Any],
    given: list[dict[str, Any]],
    chain_cut: TruncationPoint | None = None,
) -> None:
    """Add a response.

    Args:
        connection: to write with.
        tenant: its owner.
        body: the response object.
        given: items of its input.
        chain_cut: begin of its truncated conversation; None if it is whole.
    """
    connection.execute(
        insert(responses).values(
            id=body["id"],
            created_at=body["created_at"],
            status=body["status"],
            previous_id=body["previous_response_id"],
            body={**body, **_kept_cut(chain_cut)},
            input=given,
            tenant=tenant,
        )
    )


def replace(connection: Connection, kept: StoredResponse) -> None:
    """Store the end of a running response; no effect if it has ended or was deleted."""
    body = kept.body
    told = {"cuts": kept.cuts, "is_broken": kept.is_broken}
    connection.execute(
        # Conditional on the status: a response that was cancelled or deleted is not overwritten.
        update(responses)
        .where(responses.c.id == body["id"], responses.c.status.in_(RUNNING))
        .values(status=body["status"], body={**body, _TOLD: told, **_kept_cut(kept.chain_cut)})
    )


def _kept_cut(cut: TruncationPoint | None) -> dict[str, Any]:
    return {} if cut is None else {_CUT: msgspec.to_builtins(cut)}


def find(connection: Connection, tenant: str, response_id: str) -> dict[str, Any]:
    """Return a response of a tenant.

    Raises:
        NotFound: the tenant has no such response.
    """
    return find_stored(connection, tenant, response_id).body


def shown(connection: Connection, tenant: str, response_id: str) -> bytes:
    """Return a response as JSON without materializing it.

    Raises:
        NotFound: the tenant has no such response.
    """
    # Values stay raw JSON: only the names of the outer fields are decoded.
    fields = _fields(_text_of(connection, responses.c.body, tenant, response_id))
    return msgspec.json.encode({k: v for k, v in fields.items() if k not in (_TOLD, _CUT)})


def find_stored(connection: Connection, tenant: str, response_id: str) -> StoredResponse:
    """Return a response with its delta boundaries.

    Raises:
        NotFound: the tenant has no such response.
    """
    body = _item_of(_text_of(connection, responses.c.body, tenant, response_id))
    told, _ = body.pop(_TOLD, {}), body.pop(_CUT, None)
    return StoredResponse(body, told.get("cuts"), told.get("is_broken", False))


def input_items(
    connection: Connection, tenant: str, response_id: str, page: Page
) -> list[dict[str, Any]]:
    """A page of a response's input items, and one more if more follow.

    Raises:
        NotFound: there is no such response.
        InvalidRequest: the item to start after does not exist.
    """
    found = _items(_text_of(connection, responses.c.input, tenant, response_id))
    if page.is_descending:
        found.reverse()
    first = 0
    if page.after is not None:
        # Decodes the id of each item and skips the rest, which may be large.
        ids = [_named(item).id for item in found]
        if page.after not in ids:
            raise InvalidRequest(f"there is no item {page.after[:128]!r}", param="after")
        first = ids.index(page.after) + 1
    some = found[first : first + page.limit + 1]
    return [_item_of(item) for item in some]


def items(
    connection: Connection, tenant: str, wanted: Mapping[str, str], *, most_bytes: int
) -> dict[str, StoredOutput]:
    """Return output items of a tenant's responses by id.

    Args:
        connection: to read with.
        tenant: their owner.
        wanted: ids, each with the field that references it.
        most_bytes: maximum of response bytes to search, for all items together.

    Raises:
        NotFound: there is no such item.
        InvalidRequest: more would have to be searched.
    """
    found, left = dict[str, StoredOutput](), most_bytes
    for item_id, param in wanted.items():
        found[item_id], looked_at = _item(connection, tenant, item_id, param, left)
        left -= looked_at
    return found


def remove(connection: Connection, tenant: str, response_id: str) -> None:
    """Delete a response of a tenant.

    Raises:
        NotFound: the tenant has no such response.
    """
    mine = (responses.c.id == response_id, responses.c.tenant == tenant)
    if not connection.execute(delete(responses).where(*mine)).rowcount:
        raise NotFound(f"there is no response {response_id[:128]!r}", param="response_id")


def remove_older(connection: Connection, created_at: float) -> None:
    """Delete older responses that do not run."""
    old = responses.c.created_at < created_at
    connection.execute(delete(responses).where(old, responses.c.status.not_in(RUNNING)))


def fail_running(connection: Connection) -> int:
    """Mark running responses of the previous process as failed; return their number."""
    running = select(responses.c.body).where(responses.c.status.in_(RUNNING))
    bodies = connection.execute(running).scalars().all()
    for body in bodies:
        replace(connection, StoredResponse({**body, "status": "failed", "error": _LOST}))
    return len(bodies)


def _item(
    connection: Connection, tenant: str, item_id: str, param: str, most_bytes: int
) -> tuple[StoredOutput, int]:
    """Find an item; ids begin with their time, so it is in one of the last responses before it."""
    of_item = _ITEM.fullmatch(item_id)
    looked_at = 0
    if of_item is not None:
        # Both ids begin with nanoseconds: a response is created before its items.
        before = responses.c.id <= f"resp_{of_item[1]}"
        mine = select(responses.c.id).where(responses.c.tenant == tenant, before)
        last = mine.order_by(responses.c.id.desc()).limit(_LAST)
        body = type_coerce(responses.c.body, Text)
        for response_id in connection.execute(last).scalars().all():
            # The database searches a body: most are never read into this process.
            sizes = select(func.length(body), func.instr(body, item_id) > 0)
            size, is_there = connection.execute(sizes.where(responses.c.id == response_id)).one()
            looked_at += size
            if looked_at > most_bytes:
                raise InvalidRequest(
                    f"more than {most_bytes} bytes of responses would have to be searched "
                    f"for the item {item_id}: send the item itself",
                    param=param,
                )
            if is_there:
                text = connection.execute(select(body).where(responses.c.id == response_id))
                for item in _output(text.scalar_one()).output:
                    if _named(item).id == item_id:
                        return StoredOutput(_item_of(item), len(bytes(item))), looked_at
    raise NotFound(
        f"there is no item {item_id[:128]!r}; responses with `store` false are not stored",
        param=param,
    )


def _text_of(connection: Connection, column: Column[Any], tenant: str, response_id: str) -> str:
    query = select(type_coerce(column, Text))
    mine = query.where(responses.c.id == response_id, responses.c.tenant == tenant)
    text: str | None = connection.execute(mine).scalar_one_or_none()
    if text is None:
        raise NotFound(f"there is no response {response_id[:128]!r}", param="response_id")
    return text
