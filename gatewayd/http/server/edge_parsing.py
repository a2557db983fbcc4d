"""How one request is parsed: its headers and chunks are counted, an offered upgrade is passed over.

uvicorn's httptools protocol, from bytes to a request that begins; nothing here knows the time, or
other requests of the connection but whether the last one has its answer.
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

# Where a connection stands. Between requests only uvicorn's own idle timer runs.
IDLE, HEADERS, BODY = range(3)


class ParsingProtocol(HttpToolsProtocol):
    """Of one connection."""

    limits: EdgeLimits

    _phase = HEADERS
    _is_answering = False  # a whole request has no whole answer yet: what is behind it waits
    _extensions: dict[str, Any]
    _refusal: GatewayError | None = None
    _header_bytes = 0
    _seen_header_bytes = 0
    _body_left = 0  # of a body, or of a chunk, whose length is known
    _chunk_lines: ChunkLines | None = None  # of a chunked body
    _num_chunks = 0

    def _feed(self, piece: bytes) -> None:
        while True:
            try:
                self.parser.feed_data(piece)
            except httptools.HttpParserUpgrade as upgrade:
                rest = piece[upgrade.args[0] :]
            except httptools.HttpParserError:
                self.send_400_response("this is not HTTP/1.1")
                return
            else:
                return
            # A request that offers another protocol is read as if it did not.
            method = self.parser.get_method()
            if method == b"CONNECT":
                self._refuse(InvalidRequest("this is no proxy: CONNECT", code="invalid_http"))
                return
            version = self.parser.get_http_version()
            piece = without_upgrade(method, self.url, version, self.headers) + rest
            self.parser = httptools.HttpRequestParser(self)
            # As uvicorn's own: a request after one with ``connection: close`` is no error.
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    # Parser callbacks

    def on_message_begin(self) -> None:
        """A request begins."""
        if self._is_answering:
            # No piece holds two requests. If one did, this one could not be answered in its turn.
            self._stop_parsing(InvalidRequest("two requests at once", code="invalid_http"))
        super().on_message_begin()
        self.scope["extensions"] = self._extensions
        self._phase = HEADERS
        self._header_bytes = 0
        self._body_left = 0
        self._chunk_lines = None
        self._num_chunks = 0
        self._seen_header_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Count the path."""
        super().on_url(url)
        self._count_header(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header; what comes after a body (a trailer) is none."""
        if self._phase != BODY:
            super().on_header(name, value)
        self._count_header(len(name) + len(value) + 4)
        if len(self.headers) > self.limits.num_headers:
            self._stop_parsing(self._headers_too_large())

    def on_headers_complete(self) -> None:
        """The request starts; its body may follow."""
        if self.parser.should_upgrade():
            return  # the parser stops behind the headers, and we go on without it
        super().on_headers_complete()
        self._phase = BODY
        for name, value in self.headers:
            if name == b"content-length":
                self._body_left = int(value)  # the parser refuses two, and one that is no number
            elif name == b"transfer-encoding":
                self._chunk_lines = ChunkLines()  # the parser refuses any other than chunked

    def on_chunk_header(self) -> None:
        """Count a chunk: tiny ones cost far more than their bytes."""
        self._num_chunks += 1
        if self._num_chunks > self.limits.num_chunks:
            self._stop_parsing(
                PayloadTooLarge(f"the body has more than {self.limits.num_chunks} chunks")
            )

    def on_message_complete(self) -> None:
        """The request is whole."""
        if self.parser.should_upgrade():
            return
        self._phase = IDLE
        self._is_answering = not self.cycle.response_complete
        super().on_message_complete()
        # uvicorn stops reading in a large body; who does not read sees nobody leave.
        self.flow.resume_reading()

    def send_400_response(self, msg: str) -> None:
        """Answer what cannot be parsed, or what the parser was stopped for."""
        self._refuse(self._refusal or InvalidRequest(msg, code="invalid_http"))

    @abstractmethod
    def _refuse(self, error: GatewayError, *, at_once: bool = False) -> None:
        """Answer what is arriving with an error, and close."""

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
