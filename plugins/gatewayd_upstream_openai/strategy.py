"""Translator for servers with OpenAI's API."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec

from gatewayd_hooks.helpers.event_stream import server_events
from gatewayd_hooks.upstreams import (
    UpstreamCall,
    UpstreamHttp,
    UpstreamOutput,
    UpstreamRefusal,
    UpstreamResources,
    UpstreamResponse,
    VectorsDecoder,
)
from gatewayd_upstream_openai.chunks import OpenAiErrorFields, decode_chunk, decode_error
from gatewayd_upstream_openai.config import OpenAiUpstreamConfig
from gatewayd_upstream_openai.deltas import ChoiceReader, counts_of
from gatewayd_upstream_openai.vectors import vectors_of

_OPTIONS_SECONDS = 300.0
"""Time without ``stream_options`` after a server has refused the field."""
_PATHS = {"chat": "/chat/completions", "completion": "/completions"}


class OpenAiUpstream:
    """Relays chat and text completions, always streamed, and embeddings."""

    def __init__(self, config: OpenAiUpstreamConfig) -> None:
        self._config = config
        self._headers: dict[str, str] = {}
        self._asks_again_at = 0.0

    def open(self, resources: UpstreamResources) -> None:
        """Read the credential."""
        if resources.api_key:
            self._headers = {"authorization": f"Bearer {resources.api_key}"}

    def close(self) -> None:
        """Nothing to release."""

    async def probe(self, http: UpstreamHttp) -> None:
        """List the models, which costs nothing."""
        response = await http.get(self._config.probe_path, self._headers)
        await response.read()
        # A server without this route serves, too.
        if response.status >= 500:
            raise UpstreamRefusal(response.status)

    async def answer(self, call: UpstreamCall, http: UpstreamHttp) -> AsyncIterator[UpstreamOutput]:
        """See ``UpstreamStrategy``."""
        response = await self._start(call, http)
        if response.content_type != "text/event-stream":
            raise ValueError(f"it is {response.content_type or 'untyped'}, and no event stream")
        readers: dict[int, ChoiceReader] = {}
        async for event in server_events(response.lines()):
            if event.data == b"[DONE]":
                return
            for output in _outputs(event.data, readers):
                yield output

    async def embed(self, call: UpstreamCall, http: UpstreamHttp) -> VectorsDecoder:
        """See ``EmbedsInputs``."""
        headers = self._headers_of(call, "application/json")
        response = await http.post("/embeddings", msgspec.json.encode(call.body), headers)
        refusal = await _refusal(response)
        if refusal is not None:
            raise refusal
        body = await response.read_answer()
        return lambda: vectors_of(body)

    def _headers_of(self, call: UpstreamCall, accepted: str) -> dict[str, str]:
        headers = {**self._headers, "accept": accepted}
        if call.request_id:
            headers["x-request-id"] = call.request_id
        return headers

    async def _start(self, call: UpstreamCall, http: UpstreamHttp) -> UpstreamResponse:
        """Send the request; without ``stream_options`` to servers that do not know them."""
        headers = self._headers_of(call, "text/event-stream")
        body: dict[str, Any] = {**call.body, "stream": True}
        asks = time.monotonic() >= self._asks_again_at
        if asks:
            options: dict[str, bool] = {"include_usage": True}
            if self._config.continuous_usage:
                options["continuous_usage_stats"] = True
            response = await http.post(
                _PATHS[call.kind],
                msgspec.json.encode({**body, "stream_options": options}),
                headers,
            )
            refusal = await _refusal(response)
            if refusal is None:
                return response
            if refusal.status not in (400, 422) or not _is_of_options(refusal):
                raise refusal
        response = await http.post(_PATHS[call.kind], msgspec.json.encode(body), headers)
        refusal = await _refusal(response)
        if refusal is not None:
            raise refusal
        if asks:
            # Not for ever: one old server among several would hide the counts of all.
            self._asks_again_at = time.monotonic() + _OPTIONS_SECONDS
        return response


def _is_of_options(refusal: UpstreamRefusal) -> bool:
    return "stream_options" in (refusal.param or "") or "stream_options" in refusal.message


async def _refusal(response: UpstreamResponse) -> UpstreamRefusal | None:
    """Return the error of a response; None for an answer."""
    if response.status == 200:
        return None
    body = await response.read()
    try:
        found = decode_error(body)
    except (msgspec.DecodeError, RecursionError):
        return UpstreamRefusal(response.status)
    error = found.error if found.error is not None else found.message
    if error is None and isinstance(found.detail, str):
        error = found.detail
    return _of_error(error or "", response.status)


def _of_error(error: OpenAiErrorFields | str, status: int) -> UpstreamRefusal:
    if isinstance(error, str):
        return UpstreamRefusal(status, error)
    code = error.code
    return UpstreamRefusal(
        status, error.message, param=error.param, code=code if isinstance(code, str) else None
    )


def _outputs(data: bytes, readers: dict[int, ChoiceReader]) -> Iterator[UpstreamOutput]:
    """Translate one event.

    Raises:
        ValueError: it is no chunk.
        UpstreamRefusal: it is an error.
    """
    try:
        chunk = decode_chunk(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"an event is no chunk: {error}") from None
    if chunk.error is not None:
        # Its status is not known: the response had begun.
        raise _of_error(chunk.error, 500)
    for choice in chunk.choices or ():
        reader = readers.get(choice.index)
        if reader is None:
            reader = readers[choice.index] = ChoiceReader(choice.index)
        if (delta := reader.read(choice)) is not None:
            yield delta
    if chunk.usage is not None:
        yield counts_of(chunk.usage)
