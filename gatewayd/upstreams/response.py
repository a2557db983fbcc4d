"""Response of an upstream, with limits on its sizes: nothing of it is trusted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp

MOST_LINE_BYTES = 8 << 20
MOST_ANSWER_BYTES = 256 << 20
"""Unless less is expected of an answer."""
MOST_ERROR_BYTES = 64 << 10
_DRAIN_SECONDS = 0.5
_MOST_RETRY_SECONDS = 3600.0


class BoundedResponse:
    """Implements ``gatewayd_hooks.upstreams.UpstreamResponse``.

    Attributes:
        status: HTTP status.
        content_type: media type in lower case, without parameters.
        retry_after: seconds of the header ``retry-after``; None without one.

    Args:
        response: the response, of which the headers have arrived.
        most_bytes: maximum length of an answer.
    """

    def __init__(
        self, response: aiohttp.ClientResponse, most_bytes: int = MOST_ANSWER_BYTES
    ) -> None:
        self._response = response
        self._most_bytes = most_bytes
        self.status = response.status
        header = response.headers.get("content-type", "")
        self.content_type = header.partition(";")[0].strip().lower()
        self.retry_after = _seconds(response.headers.get("retry-after", ""))

    async def lines(self) -> AsyncIterator[bytes]:
        """See ``UpstreamResponse``."""
        rest = bytearray()
        async for piece in self._answer():
            # Only the new bytes are searched: a long line may come in many pieces.
            begin, end = 0, piece.find(b"\n")
            while end >= 0:
                rest += piece[begin:end]
                if len(rest) > MOST_LINE_BYTES:
                    break
                yield bytes(rest.removesuffix(b"\r"))
                rest.clear()
                begin, end = end + 1, piece.find(b"\n", end + 1)
            rest += piece[begin:]
            if len(rest) > MOST_LINE_BYTES:
                raise ValueError(f"a line of its answer has more than {MOST_LINE_BYTES} bytes")
        if rest:
            yield bytes(rest)

    async def read_answer(self) -> bytes:
        """See ``UpstreamResponse``."""
        return b"".join([piece async for piece in self._answer()])

    async def _answer(self) -> AsyncIterator[bytes]:
        """Iterate over the pieces of an answer.

        Raises:
            ValueError: it is compressed, or too long.
        """
        # It was told that the gateway takes none: a compressed body may be a bomb.
        if self._response.headers.get("content-encoding", "identity") != "identity":
            raise ValueError("its answer is compressed")
        too_long = f"its answer has more than {self._most_bytes} bytes"
        if (self._response.content_length or 0) > self._most_bytes:
            raise ValueError(too_long)
        total = 0
        async for piece in self._pieces():
            total += len(piece)
            if total > self._most_bytes:
                raise ValueError(too_long)
            yield piece

    async def read(self) -> bytes:
        """See ``UpstreamResponse``."""
        found = bytearray()
        async for piece in self._pieces():
            found += piece
            if len(found) > MOST_ERROR_BYTES:
                break
        return bytes(found[:MOST_ERROR_BYTES])

    async def _pieces(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._response.content.iter_any():
                yield piece
        except aiohttp.ClientError as error:
            raise ConnectionError("it broke its answer off") from error

    async def drain(self) -> None:
        """Read the rest, so that the connection can be used again; close it if that takes long."""
        try:
            with contextlib.suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(_DRAIN_SECONDS):
                    # Too much to read is closed below.
                    await self.read()
        finally:
            self.close()

    def close(self) -> None:
        """Close the connection, unless the whole response was read."""
        if self._response.content.at_eof():
            self._response.release()
        else:
            self._response.close()


def _seconds(header: str) -> float | None:
    """Parse ``retry-after``; a date is not used, since clocks differ."""
    if header.isascii() and header.isdigit() and len(header) <= 9:
        return min(_MOST_RETRY_SECONDS, float(header))
    return None
