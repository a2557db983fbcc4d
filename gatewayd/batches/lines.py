"""The lines of a batch's input: reading them, and what may be wrong with them. Blocks.

A body stays the bytes that it is: millions of objects of a large one would stall the daemon, and
the route that answers it reads it anyway.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gatewayd.http.asgi import encode_json

MAX_ERRORS = 100
MAX_CUSTOM_ID = 512

_NULL = msgspec.Raw(b"null")


class _Request(msgspec.Struct):
    custom_id: msgspec.Raw = _NULL
    method: msgspec.Raw = _NULL
    url: msgspec.Raw = _NULL
    body: msgspec.Raw = _NULL


_request = msgspec.json.Decoder(_Request).decode
_string = msgspec.json.Decoder(str).decode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Line(NamedTuple):
    """A request.

    Attributes:
        number: of the line, from 1.
        custom_id: its client's name for it.
        body: of the request, in the class ``batch``.
        model: that it names, if it does.
    """

    number: int
    custom_id: str
    body: bytes
    model: str | None


class LineError(NamedTuple):
    """What is wrong with a line, or with the whole file; OpenAI's batch error."""

    code: str
    line: int | None
    message: str
    param: str | None

    def shown(self) -> dict[str, Any]:
        """As JSON."""
        return self._asdict()


class Checked(NamedTuple):
    """An input that was looked through.

    Attributes:
        total: requests.
        model: of the first one.
        errors: at most ``MAX_ERRORS``; with any, nothing is run.
    """

    total: int
    model: str | None
    errors: list[LineError]


class _Refused(Exception):
    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param


def check(path: Path, endpoint: str, *, most_lines: int, line_bytes: int) -> Checked:
    """Look a whole input through.

    Args:
        path: of the content.
        endpoint: that every line must name.
        most_lines: that it may have.
        line_bytes: that a line may have.

    Raises:
        OSError: it cannot be read.
    """
    errors: list[LineError] = []
    seen: dict[str, int] = {}
    total, model = 0, None
    for number, text in _texts(path, line_bytes):
        total += 1
        if total > most_lines:
            message = f"the file has more requests than the maximum of {most_lines}"
            errors.append(LineError("too_many_requests", None, message, None))
            break
        try:
            line = _line(number, text, endpoint)
            if (first := seen.setdefault(line.custom_id, number)) != number:
                raise _Refused(
                    "duplicate_custom_id",
                    f"custom_id {line.custom_id[:64]!r} is that of line {first} already",
                    "custom_id",
                )
        except _Refused as refused:
            errors.append(LineError(refused.code, number, refused.message, refused.param))
            if len(errors) == MAX_ERRORS:
                break
            continue
        model = model or line.model
    if not total:
        errors.append(LineError("empty_file", None, "the file has no requests", None))
    return Checked(total, model, errors)


def lines(path: Path, endpoint: str, without: Collection[int]) -> Iterator[Line]:
    """The requests of an input that was checked, but for some.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        for number, text in enumerate(file, 1):
            if number not in without and text.strip():
                yield _line(number, text, endpoint)


def _texts(path: Path, line_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    """Lines with their numbers, without empty ones; None for one that is too long."""
    with path.open("rb") as file:
        number = 0
        while text := file.readline(line_bytes + 1):
            number += 1
            if len(text) > line_bytes and not text.endswith(b"\n"):
                while (rest := file.readline(1 << 20)) and not rest.endswith(b"\n"):
                    pass
                yield number, None
            elif text.strip():
                yield number, text


def _line(number: int, text: bytes | None, endpoint: str) -> Line:
    if text is None:
        raise _Refused("line_too_long", "the line is longer than a request's body may be")
    try:
        request = _request(text)
    except msgspec.ValidationError:
        raise _Refused("invalid_json_line", "the line must be a JSON object") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _Refused("invalid_json_line", f"the line is not JSON: {error}") from None
    custom_id = _text(request.custom_id)
    if custom_id is None or not 0 < len(custom_id) <= MAX_CUSTOM_ID:
        raise _Refused(
            "invalid_custom_id",
            f"custom_id must be a string of 1 to {MAX_CUSTOM_ID} characters",
            "custom_id",
        )
    if _text(request.method) != "POST":
        raise _Refused("invalid_method", "method must be POST", "method")
    if _text(request.url) != endpoint:
        raise _Refused("invalid_url", f"url must be {endpoint}, as the batch's endpoint", "url")
    try:
        body = _fields(request.body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _Refused("invalid_body", "body must be a JSON object", "body") from None
    for field in ("stream", "background"):
        if bytes(body.get(field, _NULL)) not in (b"false", b"null"):
            raise _Refused("invalid_body", f"{field} has no place in a batch", f"body.{field}")
    model = _text(body.get("model", _NULL))
    return Line(
        number=number,
        custom_id=custom_id,
        body=encode_json({**body, "priority": "batch"}),
        model=None if model is None else model[:256],
    )


def _text(raw: msgspec.Raw) -> str | None:
    try:
        return _string(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
