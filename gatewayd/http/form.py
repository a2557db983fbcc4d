"""Streaming parser of ``multipart/form-data`` with short fields and one file."""

from __future__ import annotations

from typing import Protocol

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from gatewayd.errors import ClientGone, InvalidRequest, PayloadTooLarge, UnsupportedMediaType
from gatewayd.http.asgi import Receive, Scope, header
from gatewayd.http.bodies import reserve_body
from gatewayd.http.server.body_deadline import extend_deadline

MAX_FIELD_BYTES = 16 * 1024
MAX_PARTS = 32
_AT_ONCE = 1 << 20
_FRAMING_BYTES = 256 * 1024
"""Maximum bytes of a body in addition to its file."""


class Sink(Protocol):
    """Destination of the uploaded file."""

    async def write(self, data: bytes) -> None:
        """Write the next data of the file."""


class MultipartForm:
    """Incrementally parsed form.

    Attributes:
        fields: values by name.
        filename: of the file; None until its part has arrived.
    """

    def __init__(self, boundary: bytes, limit: int) -> None:
        self._limit = limit
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._header_name,
                "on_header_value": self._header_value,
                "on_header_end": self._header_end,
                "on_headers_finished": self._headers_finished,
                "on_part_data": self._data,
                "on_part_end": self._end,
                "on_end": self._finish,
            },
        )
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self._num_parts = self._file_bytes = 0
        self._header = (b"", b"")
        self._disposition = b""
        self._field = ""
        self._value = b""
        self._is_file = self._is_whole = False
        self._pieces: list[bytes] = []

    def feed(self, data: bytes) -> None:
        """Parse the next bytes of the body.

        Raises:
            InvalidRequest: the form is malformed.
            PayloadTooLarge: the file is over the limit.
        """
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise InvalidRequest(f"the form cannot be read: {error}", code="invalid_form") from None

    def pop_file_data(self) -> bytes:
        """Return and clear the file data parsed since the last call."""
        data = b"".join(self._pieces)
        self._pieces.clear()
        return data

    def close(self) -> None:
        """Break the reference cycle between form and parser."""
        self._parser.callbacks = {}
        self._pieces.clear()

    def check(self) -> None:
        """Check that the form is complete, at the end of the body.

        Raises:
            InvalidRequest: the form is incomplete, or there is no file.
        """
        if not self._is_whole:
            raise InvalidRequest("the form ends too early", code="invalid_form")
        if self.filename is None:
            raise InvalidRequest(
                "file is required", param="file", code="missing_required_parameter"
            )

    # Parser callbacks

    def _begin(self) -> None:
        self._num_parts += 1
        if self._num_parts > MAX_PARTS:
            raise InvalidRequest(f"the form has more than {MAX_PARTS} parts", code="invalid_form")
        self._disposition = b""

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        # The parser may deliver a name or a value in several pieces.
        self._header = (self._header[0] + data[start:end], b"")

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._header = (self._header[0], self._header[1] + data[start:end])

    def _header_end(self) -> None:
        name, value = self._header
        self._header = (b"", b"")
        if name.lower() == b"content-disposition":
            self._disposition = value

    def _headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = options.get(b"name", b"").decode(errors="replace")
        self._field, self._value, self._is_file = name, b"", name == "file"
        if not name:
            raise InvalidRequest("a part of the form has no name", code="invalid_form")
        if self._is_file and self.filename is not None:
            raise InvalidRequest("file is given twice; send one", param="file")
        if self._is_file:
            filename = options.get(b"filename", b"").decode(errors="replace")
            # Some clients send their own path.
            self.filename = filename.replace("\\", "/").rpartition("/")[2][:255] or "upload"

    def _data(self, data: bytes, start: int, end: int) -> None:
        if not self._is_file:
            self._value += data[start:end]
            if len(self._value) > MAX_FIELD_BYTES:
                raise InvalidRequest(
                    f"{self._field[:64]} is longer than the maximum of {MAX_FIELD_BYTES} bytes",
                    param=self._field[:64],
                )
            return
        self._file_bytes += end - start
        if self._file_bytes > self._limit:
            raise too_large(self._limit)
        self._pieces.append(data[start:end])

    def _end(self) -> None:
        if not self._is_file:
            if self._field in self.fields:
                name = self._field[:64]
                raise InvalidRequest(f"{name} is given twice; send it once", param=name)
            self.fields[self._field] = self._value.decode(errors="replace")

    def _finish(self) -> None:
        self._is_whole = True


def too_large(limit: int) -> PayloadTooLarge:
    """Return the error for a file over the limit."""
    return PayloadTooLarge(
        f"the file has more bytes than the maximum of {limit}, [files] bytes", param="file"
    )


async def receive_form(scope: Scope, receive: Receive, sink: Sink, limit: int) -> MultipartForm:
    """Receive a form with at most one megabyte of it in memory.

    Args:
        scope: of the request.
        receive: its body.
        sink: destination of the file.
        limit: maximum bytes of the file.

    Raises:
        UnsupportedMediaType: the body is not a form.
        InvalidRequest: the form is malformed.
        PayloadTooLarge: the file is, or must be, over the limit.
        NotAdmitted: the memory budget for bodies is used up.
        ClientGone: the client disconnected before its end.
    """
    kind, options = parse_options_header(header(scope, b"content-type") or b"")
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise UnsupportedMediaType(
            "the body must be a form: send content-type: multipart/form-data"
        )
    stated = header(scope, b"content-length")
    if stated is not None and stated.isdigit() and int(stated[:18]) > limit + _FRAMING_BYTES:
        # A client that waits for `100 Continue` has sent nothing of the body.
        if header(scope, b"expect") is None:
            await _discard(receive)
        raise too_large(limit)
    try:
        form = MultipartForm(options[b"boundary"], limit)
    except FormParserError as error:
        raise InvalidRequest(f"the form cannot be read: {error}", code="invalid_form") from None
    # The most that is held in memory before it is written.
    reserve_body(scope, _AT_ONCE)
    try:
        await _receive_into(form, scope, receive, sink, limit)
    finally:
        form.close()
    return form


async def _receive_into(
    form: MultipartForm, scope: Scope, receive: Receive, sink: Sink, limit: int
) -> None:
    waiting, total = 0, 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientGone
        body = message.get("body", b"")
        waiting, total = waiting + len(body), total + len(body)
        try:
            # The parser limits the file; this also bounds fields and framing.
            if total > limit + _FRAMING_BYTES:
                raise too_large(limit)
            form.feed(body)
        except PayloadTooLarge:
            if message.get("more_body"):
                await _discard(receive)
            raise
        if waiting >= _AT_ONCE:
            await sink.write(form.pop_file_data())
            extend_deadline(scope)
            waiting = 0
        if not message.get("more_body"):
            break
    form.check()
    await sink.write(form.pop_file_data())


async def _discard(receive: Receive) -> None:
    """Read and discard the rest of the body, until its deadline.

    Most clients read a response only after sending all, and lose it if the connection is closed.
    """
    while (message := await receive())["type"] == "http.request" and message.get("more_body"):
        pass
