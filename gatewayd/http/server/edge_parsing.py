"""Parsing of one request: limits on headers and chunks; offered protocol upgrades are ignored.

The part of uvicorn's httptools protocol from bytes to the start of a request, independent of time
and of other requests of the connection, except whether the previous one is answered.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NoReturn

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gatewayd.errors import GatewayError, HeadersTooLarge, InvalidRequest, PayloadTooLarge
from gatewayd.http.server.edge_chunks import ChunkLines
from gatewayd.http.server.edge_limits import EdgeLimits
from gatewayd.http.server.upgrade import without_upgrade

# Parsing phase of a connection. Between requests only uvicorn's idle timer runs.
IDLE, HEADERS, BODY = range(3)


class ParsingProtocol(HttpToolsProtocol):
    """HTTP parsing of one connection."""

    limits: EdgeLimits

    _phase = HEADERS
    _is_answering = False  # a complete request awaits its response; later ones must wait
    _extensions: dict[str, Any]
    _refusal: GatewayError | None = None
    _header_bytes = 0
    _seen_header_bytes = 0
    _body_left = 0  # remaining bytes of a body or chunk of known length
    _chunk_lines: ChunkLines | None = None  # of a chunked body
    _num_chunks = 0

    def _feed(self, piece: bytes) -> None:
        while True:
            try:
                self.parser.feed_data(piece)
            except httptools.HttpParserUpgrade as upgrade:
                # Bytes after the headers, which the parser has not seen.
                rest = piece[upgrade.args[0] :]
            except httptools.HttpParserError:
                self.send_400_response("this is not HTTP/1.1")
                return
            else:
                return
            # An offered protocol upgrade is ignored.
            method = self.parser.get_method()
            if method == b"CONNECT":
                self._refuse(
                    InvalidRequest(
                        "CONNECT is not supported: this is not a proxy", code="invalid_http"
                    )
                )
                return
            version = self.parser.get_http_version()
            piece = without_upgrade(method, self.url, version, self.headers) + rest
            self.parser = httptools.HttpRequestParser(self)
            # As in uvicorn: a request after one with ``connection: close`` is not an error.
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    # Parser callbacks

    def on_message_begin(self) -> None:
        """Reset the parsing state for a new request."""
        if self._is_answering:
            # Pieces never contain two requests; if one did, responses could be sent out of order.
            self._stop_parsing(InvalidRequest("overlapping requests", code="invalid_http"))
        super().on_message_begin()
        self.scope["extensions"] = self._extensions
        self._phase = HEADERS
        self._header_bytes = 0
        self._body_left = 0
        self._chunk_lines = None
        self._num_chunks = 0
        self._seen_header_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Count the URL's bytes."""
        super().on_url(url)
        self._count_header(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header, and store it unless it is a trailer after the body."""
        if self._phase != BODY:
            super().on_header(name, value)
        # With colon, space and line end.
        self._count_header(len(name) + len(value) + 4)
        if len(self.headers) > self.limits.num_headers:
            self._stop_parsing(self._headers_too_large())

    def on_headers_complete(self) -> None:
        """Start the request and prepare for its body."""
        if self.parser.should_upgrade():
            return  # the parser stops after the headers; ``_feed`` continues with a new one
        super().on_headers_complete()
        self._phase = BODY
        for name, value in self.headers:
            if name == b"content-length":
                self._body_left = int(value)  # the parser refuses repeated and invalid ones
            elif name == b"transfer-encoding":
                self._chunk_lines = ChunkLines()  # the parser refuses encodings other than chunked

    def on_chunk_header(self) -> None:
        """Count a chunk, because tiny ones cost far more than their bytes."""
        self._num_chunks += 1
        if self._num_chunks > self.limits.num_chunks:
            self._stop_parsing(
                PayloadTooLarge(f"the body has more than {self.limits.num_chunks} chunks")
            )

    def on_message_complete(self) -> None:
        """Mark the request as complete."""
        if self.parser.should_upgrade():
            return
        self._phase = IDLE
        # The app may have answered before the end of the body.
        self._is_answering = not self.cycle.response_complete
        super().on_message_complete()
        # uvicorn pauses reading in a large body; a paused connection detects no disconnect.
        self.flow.resume_reading()

    def send_400_response(self, msg: str) -> None:
        """Answer malformed HTTP, or with the error for which parsing was stopped."""
        self._refuse(self._refusal or InvalidRequest(msg, code="invalid_http"))

    @abstractmethod
    def _refuse(self, error: GatewayError, *, at_once: bool = False) -> None:
        """Answer the arriving request with an error and close the connection."""

    def _count_header(self, num_bytes: int) -> None:
        self._seen_header_bytes += num_bytes
        if self._seen_header_bytes > self.limits.header_bytes:
            self._stop_parsing(self._headers_too_large())

    def _headers_too_large(self) -> HeadersTooLarge:
        return HeadersTooLarge(
            f"the headers are over {self.limits.header_bytes} bytes or "
            f"{self.limits.num_headers} in number"
        )

    def _stop_parsing(self, refusal: GatewayError) -> NoReturn:
        self._refusal = refusal
        raise ValueError(refusal.message)  # the parser turns it into its own error
