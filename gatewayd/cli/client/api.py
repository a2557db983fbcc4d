"""Client of an OpenAI-compatible server.

There are no retries, and nothing is hidden: every failure is an ``ApiError`` with a code.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

from gatewayd.cli.client.wire import Chunk, ModelNames, TokenList, decode_chunk
from gatewayd_lang.events import DONE, EventReader


class ApiError(Exception):
    """The server refused a request, broke off or could not be reached.

    Attributes:
        code: the server's own, or ``http_<status>``, ``connection``, ``timeout``,
            ``bad_answer``, ``truncated``.
        message: one sentence.
        status: of the answer; None without one.
    """

    def __init__(self, code: str, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status


class ApiClient:
    """Client of one server, with a connection for each concurrent request."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout_seconds: float = 600,
        keep_alive: bool = True,
    ) -> None:
        """Configure the client; it connects on the first request.

        Args:
            url: ``http://host:port``, with or without a trailing ``/v1``.
            api_key: sent as a bearer token.
            timeout_seconds: for a whole request.
            keep_alive: whether to reuse connections. llama.cpp's server announces keep-alive but
                closes the connection after each stream, so that the next request on it fails.
        """
        self.url = url.rstrip("/").removesuffix("/v1")
        # Compression would delay the stream and cost the client CPU time.
        self._headers = {"Accept-Encoding": "identity"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._keep_alive = keep_alive
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds, sock_connect=10)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            # No limit: aiohttp's own of 100 would queue requests in the client.
            connector=aiohttp.TCPConnector(limit=0, force_close=not self._keep_alive),
            headers=self._headers,
            timeout=self._timeout,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def models(self) -> list[str]:
        """Return the names of the served models.

        Raises:
            ApiError: the server cannot be reached or lists none.
        """
        answer = await self._call("GET", "/v1/models", None)
        try:
            names = [card.id for card in msgspec.json.decode(answer, type=ModelNames).data]
        except msgspec.DecodeError as error:
            raise ApiError("bad_answer", f"/v1/models is not a list of models: {error}") from error
        if not names:
            raise ApiError("bad_answer", "/v1/models is empty: the server serves no model")
        return names

    async def tokenize(self, text: str, model: str) -> list[int] | None:
        """Tokenize a text without adding special tokens; None if the server cannot."""
        # ``prompt`` is what vLLM and gatewayd read, ``content`` what llama.cpp does.
        body = {"model": model, "prompt": text, "content": text, "add_special_tokens": False}
        try:
            answer = await self._call("POST", "/tokenize", msgspec.json.encode(body))
            return msgspec.json.decode(answer, type=TokenList).tokens
        except (ApiError, msgspec.DecodeError):
            return None

    async def stream(self, path: str, body: dict[str, Any]) -> AsyncGenerator[list[Chunk], None]:
        """Send a request and yield its events, with those received together in one list.

        Raises:
            ApiError: also after some events, when the server sends an error or breaks off.
        """
        reader = EventReader()
        try:
            async with self._open("POST", path, msgspec.json.encode(body)) as response:
                if response.status != 200:
                    raise _refusal(response.status, await response.read())
                while piece := await response.content.readany():
                    payloads = reader.feed(piece)
                    is_done = DONE in payloads
                    if is_done:
                        payloads = payloads[: payloads.index(DONE)]
                    chunks = [decode_chunk(payload) for payload in payloads]
                    good = [chunk for chunk in chunks if chunk.error is None]
                    # Output that arrives together with an error is delivered before it.
                    if good:
                        yield good
                    for chunk in chunks:
                        if chunk.error is not None:
                            raise _error_of(chunk.error, None)
                    if is_done:
                        # The connection can only be reused if the stream was read to its end.
                        await response.read()
                        return
        # First, because it is an OSError, too.
        except TimeoutError as error:
            raise ApiError("timeout", f"no end within {self._timeout.total} seconds") from error
        except (aiohttp.ClientError, OSError, ssl.SSLError) as error:
            raise ApiError("connection", _reason(error)) from error
        except msgspec.DecodeError as error:
            raise ApiError(
                "bad_answer", f"an event is not JSON of a completion: {error}"
            ) from error
        raise ApiError("truncated", "the stream ended without [DONE]")

    async def _call(self, method: str, path: str, body: bytes | None) -> bytes:
        try:
            async with self._open(method, path, body) as response:
                answer: bytes = await response.read()
        except TimeoutError as error:
            raise ApiError("timeout", f"no answer within {self._timeout.total} seconds") from error
        except (aiohttp.ClientError, OSError, ssl.SSLError) as error:
            raise ApiError("connection", _reason(error)) from error
        if response.status != 200:
            raise _refusal(response.status, answer)
        return answer

    def _open(self, method: str, path: str, body: bytes | None) -> Any:  # noqa: ANN401
        if self._session is None:
            raise RuntimeError("use the client inside `async with`")
        headers = {"Content-Type": "application/json"} if body is not None else None
        return self._session.request(method, self.url + path, data=body, headers=headers)


def _reason(error: Exception) -> str:
    """Describe a connection error, with the operating system's message if there is one."""
    number = getattr(getattr(error, "os_error", error), "errno", None)
    return os.strerror(number).lower() if number else str(error) or type(error).__name__


def _refusal(status: int, body: bytes) -> ApiError:
    try:
        document = msgspec.json.decode(body)
    except msgspec.DecodeError:
        document = None
    if isinstance(document, dict):
        return _error_of(document.get("error", document), status)
    return ApiError(f"http_{status}", body[:200].decode(errors="replace"), status)


def _error_of(error: object, status: int | None) -> ApiError:
    """Convert OpenAI's error object, or what other servers send instead."""
    fallback = "server_error" if status is None else f"http_{status}"
    if not isinstance(error, dict):
        return ApiError(fallback, str(error), status)
    # llama.cpp has the HTTP status in ``code``, and the error code in ``type``.
    code = next((v for v in (error.get("code"), error.get("type")) if isinstance(v, str)), fallback)
    return ApiError(code, str(error.get("message", error)), status)
