"""Lines of a batch's input: parsing, and reading in bounded pieces. Blocks.

A body stays raw bytes: materializing the millions of objects of a large one would stall the daemon,
and the route that runs it parses it anyway.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from gatewayd.http.asgi import encode_json

MAX_CUSTOM_ID = 512

_LINES_AT_ONCE = 32
_BYTES_AT_ONCE = 64 << 10
"""Read-ahead limits for each open batch; a longer line is read alone."""
_SCANNED_LINES, _SCANNED_BYTES = 4096, 1 << 20
"""Limits of a piece while skipping lines that have a result."""

_NULL = msgspec.Raw(b"null")


class _Request(msgspec.Struct):
    custom_id: msgspec.Raw = _NULL
    method: msgspec.Raw = _NULL
    url: msgspec.Raw = _NULL
    body: msgspec.Raw = _NULL


class _Body(msgspec.Struct):
    """Other fields, possibly a million, are not materialized."""

    stream: msgspec.Raw = _NULL
    background: msgspec.Raw = _NULL
    model: msgspec.Raw = _NULL
    priority: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_request = msgspec.json.Decoder(_Request).decode
_body = msgspec.json.Decoder(_Body).decode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_string = msgspec.json.Decoder(str).decode


class BatchLine(NamedTuple):
    """A request of a batch.

    Attributes:
        number: line number, from 1.
        offset: offset of its first byte in the input.
        custom_id: the client's name for it.
        body: body of the request, with the priority class ``batch``.
    """

    number: int
    offset: int
    custom_id: str
    body: bytes


class Position(NamedTuple):
    """A position in the input.

    Attributes:
        offset: bytes before it.
        number: lines before it.
        requests: those of them that are not empty.
    """

    offset: int = 0
    number: int = 0
    requests: int = 0


def some_lines(
    path: Path, endpoint: str, at: Position, *, total: int, without: Container[int]
) -> tuple[list[BatchLine], Position | None]:
    """Read the next requests of a validated input, except for some.

    A bounded piece of work of a few milliseconds, which may find none although more follow. A long
    line is returned alone.

    Args:
        path: path of the content.
        endpoint: endpoint that every line names.
        at: position to read from.
        total: number of requests of the whole input; nothing is read after the last.
        without: numbers of lines to skip.

    Returns:
        The requests, and the next position; None at the end.

    Raises:
        OSError: the input cannot be read.
    """
    found: list[BatchLine] = []
    num_bytes = 0
    offset, number, requests = at
    with path.open("rb") as file:
        file.seek(offset)
        while requests < total:
            # A resumed batch may skip most of its lines: return after a bounded part of the scan.
            if offset - at.offset > _SCANNED_BYTES or number - at.number > _SCANNED_LINES:
                return found, Position(offset, number, requests)
            if not (text := file.readline()):
                break
            is_request = bool(text.strip())
            if is_request and number + 1 not in without:
                num_bytes += len(text)
                # The position is before this line, which the next call reads again.
                if found and (num_bytes > _BYTES_AT_ONCE or len(found) == _LINES_AT_ONCE):
                    return found, Position(offset, number, requests)
                found.append(_line(number + 1, offset, text, endpoint))
            offset, number, requests = offset + len(text), number + 1, requests + is_request
    return found, None


def all_lines(
    path: Path, endpoint: str, total: int, without: Container[int]
) -> Iterator[BatchLine]:
    """Iterate over all requests of the input, except for some.

    Raises:
        OSError: the input cannot be read.
    """
    at: Position | None = Position()
    while at is not None:
        found, at = some_lines(path, endpoint, at, total=total, without=without)
        yield from found


def line_at(path: Path, endpoint: str, offset: int, number: int) -> BatchLine:
    """Read a line again by its offset.

    Raises:
        OSError: the input cannot be read.
    """
    with path.open("rb") as file:
        file.seek(offset)
        return _line(number, offset, file.readline(), endpoint)


class LineRequest(NamedTuple):
    """Parsed request of a line.

    Attributes:
        custom_id: the client's name for it.
        body: body of the request, a JSON object as written.
        model: the model that it names, or None.
        has_class: whether it sets a priority class.
    """

    custom_id: str
    body: bytes
    model: str | None
    has_class: bool


class InvalidLine(Exception):
    """A line of the input is invalid.

    Attributes:
        code: OpenAI's error code.
        message: description of the error.
        param: the field at fault.
    """

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param


def request_of(text: bytes, endpoint: str) -> LineRequest:
    """Parse a line.

    Raises:
        InvalidLine: the line is invalid.
    """
    try:
        request = _request(text)
    except msgspec.ValidationError:
        raise InvalidLine("invalid_json_line", "the line must be a JSON object") from None
    # RecursionError: msgspec limits the nesting by the interpreter's recursion limit.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidLine("invalid_json_line", f"the line is not JSON: {error}") from None
    custom_id = _text(request.custom_id)
    if custom_id is None or not 0 < len(custom_id) <= MAX_CUSTOM_ID:
        raise InvalidLine(
            "invalid_custom_id",
            f"custom_id must be a string of 1 to {MAX_CUSTOM_ID} characters",
            "custom_id",
        )
    if _text(request.method) != "POST":
        raise InvalidLine("invalid_method", "method must be POST", "method")
    if _text(request.url) != endpoint:
        raise InvalidLine("invalid_url", f"url must be {endpoint}, as the batch's endpoint", "url")
    try:
        body = _body(request.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidLine("invalid_body", "body must be a JSON object", "body") from None
    for field, given in (("stream", body.stream), ("background", body.background)):
        if bytes(given) not in (b"false", b"null"):
            raise InvalidLine("invalid_body", f"{field} is not allowed in a batch", f"body.{field}")
    model = _text(body.model)
    return LineRequest(
        custom_id,
        bytes(request.body),
        None if model is None else model[:256],
        body.priority is not msgspec.UNSET,
    )


def _line(number: int, offset: int, text: bytes, endpoint: str) -> BatchLine:
    request = request_of(text, endpoint)
    if request.has_class:
        # The line has a class of its own: replaced, since duplicate fields are ambiguous.
        body = encode_json({**_fields(request.body), "priority": "batch"})
    else:
        # Appended to the text before its closing brace, without parsing the rest.
        fields = request.body[:-1].rstrip()
        body = fields + (b"" if fields == b"{" else b",") + b'"priority":"batch"}'
    return BatchLine(number, offset, request.custom_id, body)


def _text(raw: msgspec.Raw) -> str | None:
    try:
        return _string(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
