"""Rows of responses; what is large of them is read only as far as it is needed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Column, Connection, Text, delete, func, insert, select, type_coerce, update

from gatewayd.errors import InvalidRequest, NotFound
from gatewayd.resources.responses.output import Cuts
from gatewayd.resources.responses.previous_responses import Cut
from gatewayd.store.paging import Page
from gatewayd.store.tables import responses

RUNNING = ("queued", "in_progress")
_ITEM = re.compile(r"(?:msg|fc|rs)_([0-9a-f]{32})")
_LAST = 256
"""More are not running at once."""
_LOST = {"code": "server_error", "message": "the daemon ended before the response was complete"}
_TOLD = "gateway_told"
_CUT = "gateway_cut"
"""Fields of a kept body that are no fields of responses."""


class StoredResponse(NamedTuple):
    """A response that is over.

    Attributes:
        body: the response.
        cuts: of each item of its output, as it was told; None where nobody could have followed.
        is_broken: whether the last item was left open.
        chain_cut: where its conversation begins; None for its beginning.
    """

    body: dict[str, Any]
    cuts: Sequence[Cuts] | None = None
    is_broken: bool = False
    chain_cut: Cut | None = None


class StoredOutput(NamedTuple):
    """An item of an output, and its bytes as it is stored."""

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
    chain_cut: Cut | None = None,
) -> None:
    """Keep one.

    Args:
        connection: to write with.
        tenant: whose it is.
        body: the response.
        given: items of its input.
        chain_cut: where its conversation begins; None for its beginning.
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
    """What became of one that ran; no effect on one that is over, or was deleted."""
    body = kept.body
    told = {"cuts": kept.cuts, "is_broken": kept.is_broken}
    connection.execute(
        update(responses)
        .where(responses.c.id == body["id"], responses.c.status.in_(RUNNING))
        .values(status=body["status"], body={**body, _TOLD: told, **_kept_cut(kept.chain_cut)})
    )


def _kept_cut(cut: Cut | None) -> dict[str, Any]:
    return {} if cut is None else {_CUT: msgspec.to_builtins(cut)}


def find(connection: Connection, tenant: str, response_id: str) -> dict[str, Any]:
    """One of a tenant's.

    Raises:
        NotFound: it has no such response.
    """
    return find_told(connection, tenant, response_id).body


def shown(connection: Connection, tenant: str, response_id: str) -> bytes:
    """The same as JSON, of which no objects were made.

    Raises:
        NotFound: it has no such response.
    """
    fields = _fields(_text_of(connection, responses.c.body, tenant, response_id))
    return msgspec.json.encode({k: v for k, v in fields.items() if k not in (_TOLD, _CUT)})


def find_told(connection: Connection, tenant: str, response_id: str) -> StoredResponse:
    """The same, with how it was told.

    Raises:
        NotFound: it has no such response.
    """
    body = _item_of(_text_of(connection, responses.c.body, tenant, response_id))
    told, _ = body.pop(_TOLD, {}), body.pop(_CUT, None)
    return StoredResponse(body, told.get("cuts"), told.get("is_broken", False))


def given(
    connection: Connection, tenant: str, response_id: str, page: Page
) -> list[dict[str, Any]]:
    """Items of the input of one: those of a page, and one more if there are more.

    Raises:
        NotFound: there is no such response.
        InvalidRequest: there is no such item to begin behind.
    """
    found = _items(_text_of(connection, responses.c.input, tenant, response_id))
    if page.is_descending:
        found.reverse()
    first = 0
    if page.after is not None:
        ids = [_named(item).id for item in found]
        if page.after not in ids:
            raise InvalidRequest(f"there is no item {page.after[:128]!r}", param="after")
        first = ids.index(page.after) + 1
    some = found[first : first + page.limit + 1]
    return [_item_of(item) for item in some]


def items(
    connection: Connection, tenant: str, wanted: Mapping[str, str], *, most_bytes: int
) -> dict[str, StoredOutput]:
    """Items that a tenant's responses have said, by their ids.

    Args:
        connection: to read with.
        tenant: whose they are.
        wanted: ids, each with the field that names it.
        most_bytes: of responses that are looked through for all of them.

    Raises:
        NotFound: there is no such item.
        InvalidRequest: there is more to look through.
    """
    found, left = dict[str, StoredOutput](), most_bytes
    for item_id, param in wanted.items():
        found[item_id], looked_at = _item(connection, tenant, item_id, param, left)
        left -= looked_at
    return found


def remove(connection: Connection, tenant: str, response_id: str) -> None:
    """Delete one of a tenant's.

    Raises:
        NotFound: it has no such response.
    """
    mine = (responses.c.id == response_id, responses.c.tenant == tenant)
    if not connection.execute(delete(responses).where(*mine)).rowcount:
        raise NotFound(f"there is no response {response_id[:128]!r}", param="response_id")


def remove_older(connection: Connection, created_at: float) -> None:
    """Delete what is older and does not run."""
    old = responses.c.created_at < created_at
    connection.execute(delete(responses).where(old, responses.c.status.not_in(RUNNING)))


def fail_running(connection: Connection) -> int:
    """Those that ran when the last process ended have failed; returns how many."""
    running = select(responses.c.body).where(responses.c.status.in_(RUNNING))
    bodies = connection.execute(running).scalars().all()
    for body in bodies:
        replace(connection, StoredResponse({**body, "status": "failed", "error": _LOST}))
    return len(bodies)


def _item(
    connection: Connection, tenant: str, item_id: str, param: str, most_bytes: int
) -> tuple[StoredOutput, int]:
    """Ids begin with their time: an item is in one of the last responses that began before it."""
    of_item = _ITEM.fullmatch(item_id)
    looked_at = 0
    if of_item is not None:
        before = responses.c.id <= f"resp_{of_item[1]}"
        mine = select(responses.c.id).where(responses.c.tenant == tenant, before)
        last = mine.order_by(responses.c.id.desc()).limit(_LAST)
        body = type_coerce(responses.c.body, Text)
        for response_id in connection.execute(last).scalars().all():
            # The database looks through a body: most are not even read into memory.
            sizes = select(func.length(body), func.instr(body, item_id) > 0)
            size, is_there = connection.execute(sizes.where(responses.c.id == response_id)).one()
            looked_at += size
            if looked_at > most_bytes:
                raise InvalidRequest(
                    f"more than {most_bytes} bytes of responses would have to be looked through "
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
