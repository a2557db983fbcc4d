"""Translator for servers with Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from gatewayd_hooks.helpers.event_stream import server_events
from gatewayd_hooks.upstreams import (
    UpstreamCall,
    UpstreamHttp,
    UpstreamOutput,
    UpstreamRefusal,
    UpstreamResources,
)
from gatewayd_upstream_anthropic.bodies import body_of
from gatewayd_upstream_anthropic.config import AnthropicUpstreamConfig
from gatewayd_upstream_anthropic.events import MessageReader, refusal_of


class AnthropicUpstream:
    """Relays chats, always streamed."""

    def __init__(self, config: AnthropicUpstreamConfig) -> None:
        self._config = config
        self._headers = {"anthropic-version": config.version}

    def open(self, resources: UpstreamResources) -> None:
        """Read the credential."""
        if resources.api_key:
            self._headers["x-api-key"] = resources.api_key

    def close(self) -> None:
        """Nothing to release."""

    async def probe(self, http: UpstreamHttp) -> None:
        """List the models, which costs nothing."""
        response = await http.get("/models", self._headers)
        await response.read()
        # A server without this route serves, too.
        if response.status >= 500:
            raise UpstreamRefusal(response.status)

    async def answer(self, call: UpstreamCall, http: UpstreamHttp) -> AsyncIterator[UpstreamOutput]:
        """See ``UpstreamStrategy``."""
        if call.kind != "chat":
            raise UpstreamRefusal(
                400, "Anthropic's API has no text completions: use chat completions", param="model"
            )
        body = {**body_of(call.body, self._config.max_tokens), "stream": True}
        headers = {**self._headers, "accept": "text/event-stream"}
        if call.request_id:
            headers["x-request-id"] = call.request_id
        response = await http.post("/messages", msgspec.json.encode(body), headers)
        if response.status != 200:
            raise refusal_of(response.status, await response.read())
        if response.content_type != "text/event-stream":
            raise ValueError(f"it is {response.content_type or 'untyped'}, and no event stream")
        reader = MessageReader()
        async for event in server_events(response.lines()):
            for output in reader.read(event.data):
                yield output
            if reader.is_over:
                return
