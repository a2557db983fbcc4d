"""Previous responses: the conversation before a response, newest first, up to a size limit.

Sizes are read before contents, so that a refused or truncated conversation is never loaded. Turns
that ``truncation`` dropped from a response stay dropped: its row stores where it begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Column, ColumnElement, Connection, Text, func, select, type_coerce

from gatewayd.errors import ContextLengthExceeded, InvalidRequest, NotFound
from gatewayd.store.tables import responses
from gatewayd_hooks.requests.fields import MAX_MESSAGES

Item = dict[str, Any]

_LOOKED_AT = 16
"""Multiple of the limit for stored data other than items, such as tools and instructions."""


class TruncationPoint(msgspec.Struct, frozen=True):
    """Begin of the truncated conversation of a response.

    Attributes:
        until: the oldest response that is part of it; empty for the response itself.
        skip: leading items of that response that were dropped.
        pinned: older items that were kept, such as system messages.
    """

    until: str
    skip: int
    pinned: list[Item]


class ChainPart(NamedTuple):
    """Items of one response, input and output.

    Attributes:
        response_id: id of the response.
        skip: leading items that were dropped.
        items: the remaining items.
    """

    response_id: str
    skip: int
    items: list[Item]


class PreviousResponses(NamedTuple):
    """Items of a conversation, from previous responses.

    Attributes:
        pinned: items that come first.
        parts: responses, oldest first.
        num_bytes: stored bytes of all items.
    """

    pinned: list[Item]
    parts: list[ChainPart]
    num_bytes: int

    @property
    def items(self) -> list[Item]:
        """All items, in order."""
        return [*self.pinned, *[item for part in self.parts for item in part.items]]

    def cut_at(self, start: int, pinned: Sequence[Item]) -> TruncationPoint | None:
        """Compute where the conversation begins after a truncation.

        Args:
            start: index of the first remaining item, of ``items`` and those of the new request.
            pinned: earlier items that remain.

        Returns:
            None if nothing was dropped except pinned items.
        """
        at = start - len(self.pinned)
        if at <= 0:
            return None
        for part in self.parts:
            if at < len(part.items):
                return TruncationPoint(part.response_id, part.skip + at, list(pinned))
            at -= len(part.items)
        return TruncationPoint("", at, list(pinned))


EMPTY = PreviousResponses([], [], 0)


class _Body(msgspec.Struct):
    output: msgspec.Raw
    gateway_cut: msgspec.Raw = msgspec.Raw(b"null")


_body = msgspec.json.Decoder(_Body).decode
_items = msgspec.json.Decoder(list[dict[str, Any]]).decode
_cut = msgspec.json.Decoder(TruncationPoint | None).decode


def chain(
    connection: Connection,
    tenant: str,
    response_id: str,
    *,
    most_bytes: int,
    is_cut: bool,
) -> PreviousResponses:
    """Load all items up to the end of a response: its own and those of its predecessors.

    Reading stops at the maximum of items of a chat: older ones are refused, or dropped.

    Args:
        connection: to read with.
        tenant: its owner.
        response_id: the last response.
        most_bytes: maximum of stored bytes.
        is_cut: whether whole responses beyond the limit are dropped; otherwise they are refused.

    Raises:
        NotFound: the response, or a predecessor, does not exist.
        ContextLengthExceeded: the conversation is longer.
        InvalidRequest: the response is not complete.
    """
    parts: list[ChainPart] = []
    # The chain is followed backwards, one row at a time: sizes first, then contents.
    cut: TruncationPoint | None = None
    next_id: str | None = response_id
    num_items = num_bytes = num_looked_at = 0
    while next_id is not None and num_items <= MAX_MESSAGES:
        row = _sizes(connection, tenant, next_id)
        # Bodies count here, too: tools and instructions are read but are no items.
        num_looked_at += row.input_bytes + row.body_bytes
        read = None
        if num_looked_at <= _LOOKED_AT * most_bytes and num_bytes + row.input_bytes <= most_bytes:
            read = _read(connection, next_id, most_bytes - num_bytes)
        if read is None:
            if is_cut:
                break
            raise ContextLengthExceeded(
                f"the conversation behind previous_response_id has more than {most_bytes} bytes, "
                "the maximum of a request: set truncation to auto, or start another one",
                param="previous_response_id",
            )
        # The newest one decides: it is where the conversation of that response begins.
        cut = cut or read.cut
        # An empty `until` is the response of the cut itself, which was read just now.
        is_last = cut is not None and cut.until in ("", next_id)
        skip = cut.skip if cut is not None and is_last else 0
        parts.append(ChainPart(next_id, skip, read.items[skip:]))
        num_bytes += read.num_bytes
        num_items += len(read.items)
        if is_last:
            break
        next_id = row.previous_id
    return PreviousResponses([] if cut is None else cut.pinned, parts[::-1], num_bytes)


class _Read(NamedTuple):
    """Items of one response."""

    items: list[Item]
    cut: TruncationPoint | None
    num_bytes: int


class _Sizes(NamedTuple):
    """Sizes of one response."""

    previous_id: str | None
    input_bytes: int
    body_bytes: int


def _sizes(connection: Connection, tenant: str, response_id: str) -> _Sizes:
    row = connection.execute(
        select(
            responses.c.status,
            responses.c.previous_id,
            func.length(_as_text(responses.c.input)).label("input_bytes"),
            func.length(_as_text(responses.c.body)).label("body_bytes"),
        ).where(responses.c.id == response_id, responses.c.tenant == tenant)
    ).one_or_none()
    if row is None:
        raise NotFound(f"there is no response {response_id[:128]!r}", param="previous_response_id")
    if row.status not in ("completed", "incomplete"):
        raise InvalidRequest(
            f"the response {response_id} is {row.status}; only completed ones can be continued",
            param="previous_response_id",
        )
    return _Sizes(row.previous_id, row.input_bytes, row.body_bytes)


def _read(connection: Connection, response_id: str, most_bytes: int) -> _Read | None:
    """Read the items of a response; None if they exceed the limit."""
    texts = select(_as_text(responses.c.input), _as_text(responses.c.body))
    given, body = connection.execute(texts.where(responses.c.id == response_id)).one()
    fields = _body(body)
    cut = bytes(fields.gateway_cut)
    num_bytes = len(given) + len(bytes(fields.output)) + len(cut)
    if num_bytes > most_bytes:
        return None
    return _Read([*_items(given), *_items(fields.output)], _cut(cut), num_bytes)


def _as_text(column: Column[Any]) -> ColumnElement[str]:
    """A column of JSON as text, which is stored as ASCII: characters are bytes."""
    return type_coerce(column, Text)
