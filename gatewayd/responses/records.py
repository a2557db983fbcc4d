"""Rows of responses, and the conversation behind one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, delete, insert, select, update

from gatewayd.errors import InvalidRequest, NotFound
from gatewayd.responses.output import Cuts
from gatewayd.store.tables import responses
from gatewayd_hooks.fields import MAX_MESSAGES

RUNNING = ("queued", "in_progress")
_ITEM = re.compile(r"(?:msg|fc|rs)_([0-9a-f]{32})")
_LAST = 256
"""More are not running at once."""
_LOST = {"code": "server_error", "message": "the daemon ended before the response was complete"}
_TOLD = "gateway_told"
"""Field of a kept body that is no field of responses."""


class Kept(NamedTuple):
    """A response that is over.

    Attributes:
        body: the response.
        cuts: of each item of its output, as it was told; None where nobody could have followed.
        is_broken: whether the last item was left open.
    """

    body: dict[str, Any]
    cuts: Sequence[Cuts] | None = None
    is_broken: bool = False


def add(
    connection: Connection, tenant: str, body: dict[str, Any], given: list[dict[str, Any]]
) -> None:
    """Keep one.

    Args:
        connection: to write with.
        tenant: whose it is.
        body: the response.
        given: items of its input.
    """
    connection.execute(
        insert(responses).values(
            id=body["id"],
            created_at=body["created_at"],
            status=body["status"],
            previous_id=body["previous_response_id"],
            body=body,
            input=given,
            tenant=tenant,
        )
    )


def replace(connection: Connection, kept: Kept) -> None:
    """What became of one that ran; no effect on one that is over, or was deleted."""
    body = kept.body
    told = {"cuts": kept.cuts, "is_broken": kept.is_broken}
    connection.execute(
        update(responses)
        .where(responses.c.id == body["id"], responses.c.status.in_(RUNNING))
        .values(status=body["status"], body={**body, _TOLD: told})
    )


def find(connection: Connection, tenant: str, response_id: str) -> dict[str, Any]:
    """One of a tenant's.

    Raises:
        NotFound: it has no such response.
    """
    return _row(connection, tenant, response_id, "response_id")[0].body


def find_told(connection: Connection, tenant: str, response_id: str) -> Kept:
    """The same, with how it was told.

    Raises:
        NotFound: it has no such response.
    """
    return _row(connection, tenant, response_id, "response_id")[0]


def given(connection: Connection, tenant: str, response_id: str) -> list[dict[str, Any]]:
    """Items of the input of one.

    Raises:
        NotFound: it has no such response.
    """
    return _row(connection, tenant, response_id, "response_id")[1]


def items(
    connection: Connection, tenant: str, wanted: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Items that a tenant's responses have said, by their ids.

    Args:
        connection: to read with.
        tenant: whose they are.
        wanted: ids, each with the field that names it.

    Raises:
        NotFound: there is no such item.
    """
    return {item_id: _item(connection, tenant, item_id, param) for item_id, param in wanted.items()}


def conversation(connection: Connection, tenant: str, response_id: str) -> list[dict[str, Any]]:
    """All items up to the end of a response: its own and of those before it.

    Behind more than a chat may have nothing is read: they are refused, or left out.

    Raises:
        NotFound: there is no such response, or one before it is gone.
        InvalidRequest: it is not complete.
    """
    parts: list[list[dict[str, Any]]] = []
    next_id: str | None = response_id
    num_items = 0
    while next_id is not None and num_items <= MAX_MESSAGES:
        (body, *_), items = _row(connection, tenant, next_id, "previous_response_id")
        if body["status"] not in ("completed", "incomplete"):
            raise InvalidRequest(
                f"the response {next_id} is {body['status']}; only one that is complete goes on",
                param="previous_response_id",
            )
        parts += [body["output"], items]
        num_items += len(body["output"]) + len(items)
        next_id = body["previous_response_id"]
    return [item for part in reversed(parts) for item in part]


def remove(connection: Connection, tenant: str, response_id: str) -> None:
    """Delete one of a tenant's.

    Raises:
        NotFound: it has no such response.
    """
    find(connection, tenant, response_id)
    connection.execute(delete(responses).where(responses.c.id == response_id))


def remove_older(connection: Connection, created_at: float) -> None:
    """Delete what is older and does not run."""
    old = responses.c.created_at < created_at
    connection.execute(delete(responses).where(old, responses.c.status.not_in(RUNNING)))


def fail_running(connection: Connection) -> int:
    """Those that ran when the last process ended have failed; returns how many."""
    running = select(responses.c.body).where(responses.c.status.in_(RUNNING))
    bodies = connection.execute(running).scalars().all()
    for body in bodies:
        replace(connection, Kept({**body, "status": "failed", "error": _LOST}))
    return len(bodies)


def _item(connection: Connection, tenant: str, item_id: str, param: str) -> dict[str, Any]:
    """Ids begin with their time: an item is in one of the last responses that began before it."""
    of_item = _ITEM.fullmatch(item_id)
    if of_item is not None:
        before = responses.c.id <= f"resp_{of_item[1]}"
        mine = select(responses.c.body).where(responses.c.tenant == tenant, before)
        last = mine.order_by(responses.c.id.desc()).limit(_LAST)
        for body in connection.execute(last).scalars():
            for item in body["output"]:
                if item["id"] == item_id:
                    found: dict[str, Any] = item
                    return found
    raise NotFound(
        f"there is no item {item_id[:128]!r}; what `store` false has said is not kept", param=param
    )


def _row(
    connection: Connection, tenant: str, response_id: str, param: str
) -> tuple[Kept, list[dict[str, Any]]]:
    mine = (responses.c.id == response_id, responses.c.tenant == tenant)
    query = select(responses.c.body, responses.c.input).where(*mine)
    found = connection.execute(query).one_or_none()
    if found is None:
        raise NotFound(f"there is no response {response_id[:128]!r}", param=param)
    body = found.body
    told = body.pop(_TOLD, {})
    return Kept(body, told.get("cuts"), told.get("is_broken", False)), found.input
