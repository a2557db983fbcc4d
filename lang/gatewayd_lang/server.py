"""Client of a completions API server."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

import aiohttp

from gatewayd_lang.errors import ServerError
from gatewayd_lang.events import DONE, EventReader
from gatewayd_lang.loop import submit

DEFAULT_URL = "http://127.0.0.1:8000"
_RETRIED = (429, 503)
_MOST_SECONDS = 10.0
"""Longest wait before a retry; for more the error is raised."""


class Server:
    """One server and one of its models; safe to share between threads, programs and states."""

    def __init__(
        self,
        url: str | None = None,
        *,
        model: str | None = None,
        api_key: str | None = None,
        timeout_seconds: float = 600,
        retries: int = 2,
    ) -> None:
        """Store the configuration; nothing is called yet.

        Args:
            url: with or without a trailing ``/v1``; by default ``GATEWAYD_URL`` of the environment,
                or ``http://127.0.0.1:8000``.
            model: its name; by default the first one that the server lists.
            api_key: sent as a bearer token; by default ``GATEWAYD_API_KEY`` of the environment.
            timeout_seconds: for a whole request.
            retries: number of retries of an overloaded server (429, 503).
        """
        url = url or os.environ.get("GATEWAYD_URL") or DEFAULT_URL
        self.url = url.rstrip("/").removesuffix("/v1")
        self._model = model
        self._api_key = api_key or os.environ.get("GATEWAYD_API_KEY")
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds, sock_connect=10)
        self._retries = retries
        self._session: aiohttp.ClientSession | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections; it opens new ones if it is used again."""
        session, self._session = self._session, None
        atexit.unregister(self.close)
        if session is not None:
            submit(session.close()).result()

    # The following methods run on the loop.

    async def model(self) -> str:
        """Return the name of the model.

        Raises:
            ServerError: the server lists none.
        """
        if self._model is None:
            models = (await self._call("GET", "/v1/models")).get("data") or []
            if not models:
                raise ServerError(f"{self.url} serves no model")
            self._model = str(models[0]["id"])
        return self._model

    async def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """Return the token ids of a text; ``special`` adds initial special tokens, such as BOS."""
        return await self._tokenize(prompt=text, add_special_tokens=special)

    async def render(
        self, messages: Sequence[Mapping[str, str]], *, generation_prompt: bool
    ) -> list[int]:
        """Return the token ids of a conversation in the model's chat template."""
        messages = list(messages)
        return await self._tokenize(messages=messages, add_generation_prompt=generation_prompt)

    async def _tokenize(self, **fields: object) -> list[int]:
        answer = await self._call("POST", "/tokenize", {"model": await self.model(), **fields})
        tokens: list[int] = answer["tokens"]
        return tokens

    async def detokenize(self, ids: Sequence[int]) -> str:
        """Return the text of token ids."""
        body = {"model": await self.model(), "tokens": list(ids)}
        return str((await self._call("POST", "/detokenize", body))["prompt"])

    async def complete(self, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Send a completion request and yield the answer: one object, or each event of a stream.

        Raises:
            ServerError: also after some events.
        """
        body = {"model": await self.model(), **body}
        if not body.get("stream"):
            yield await self._call("POST", "/v1/completions", body)
            return
        reader = EventReader()
        async with self._open("POST", "/v1/completions", body) as response:
            while piece := await response.content.readany():
                for payload in reader.feed(piece):
                    if payload == DONE:
                        await response.read()  # so that the connection is reused
                        return
                    event = _decoded(payload)
                    if "error" in event:
                        raise _refusal(None, event)
                    yield event
        raise ServerError("the stream ended before [DONE]", code="truncated")

    async def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        async with self._open(method, path, body) as response:
            return _decoded(await response.read())

    @asynccontextmanager
    async def _open(
        self, method: str, path: str, body: Mapping[str, Any] | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request, with retries if overloaded, and yield its response if that is 200."""
        for attempt in range(self._retries + 1):
            try:
                async with self._connected().request(
                    method, self.url + path, json=body
                ) as response:
                    if response.status == 200:
                        yield response
                        return
                    wait = _patience(response)
                    if wait is None or attempt == self._retries:
                        raise _refusal(response.status, await _document(response))
            except TimeoutError as error:
                raise ServerError(
                    f"{self.url} did not answer within {self._timeout.total:g} s", code="timeout"
                ) from error
            except (aiohttp.ClientError, OSError) as error:
                raise ServerError(f"{self.url}: {error}", code="connection") from error
            # Outside of the request, whose connection is returned before the wait.
            await asyncio.sleep(wait)

    def _connected(self) -> aiohttp.ClientSession:
        # Created on the loop, to which a session of aiohttp belongs.
        if self._session is None:
            headers = {"Accept-Encoding": "identity"}  # a compressed stream arrives late
            if self._api_key:
                headers["Authorization"] = f"Bearer {self._api_key}"
            # No limit on connections: each branch that generates has one.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), headers=headers, timeout=self._timeout
            )
            atexit.register(self.close)
        return self._session


_default: Server | None = None


def default_server() -> Server:
    """Return the server of programs without one of their own."""
    global _default
    if _default is None:
        _default = Server()
    return _default


def set_default_server(server: Server | None) -> None:
    """Set the default server; None for that of the environment."""
    global _default
    _default = server


def _patience(response: aiohttp.ClientResponse) -> float | None:
    """Return the seconds before a retry; None if there is to be none."""
    if response.status not in _RETRIED:
        return None
    try:
        # NaN without the header: no comparison below accepts it.
        seconds = float(response.headers.get("retry-after-ms", "nan")) / 1000
    except ValueError:
        return None
    return seconds if 0 <= seconds <= _MOST_SECONDS else None


async def _document(response: aiohttp.ClientResponse) -> object:
    body = await response.read()
    try:
        return json.loads(body)
    except ValueError:
        return body[:200].decode(errors="replace")


def _decoded(payload: bytes) -> dict[str, Any]:
    try:
        document = json.loads(payload)
    except ValueError as error:
        raise ServerError(f"the answer is no JSON: {error}", code="bad_answer") from error
    if not isinstance(document, dict):
        raise ServerError("the answer is no JSON object", code="bad_answer")
    return document


def _refusal(status: int | None, document: object) -> ServerError:
    """Parse OpenAI's error object, or what the server sent instead."""
    # Proxies may answer with other JSON, or none.
    error = document.get("error", document) if isinstance(document, dict) else document
    if not isinstance(error, dict):
        return ServerError(str(error) or f"status {status}", status=status)
    return ServerError(
        str(error.get("message", error)),
        status=status,
        code=error.get("code") or error.get("type"),
        param=error.get("param"),
    )
