"""Base class of the completion routes: receive, validate, start, respond, account."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Generic, TypeVar

import msgspec

from gatewayd.engines.api import EngineRequest
from gatewayd.http import body_threads
from gatewayd.http.asgi import (
    JSON_HEADER,
    Receive,
    Scope,
    Send,
    ignored_header,
    read_json_body,
    send_body,
)
from gatewayd.http.openai.answer_headers import answer_headers
from gatewayd.http.openai.granted import enforce_grant
from gatewayd.http.openai.large_answers import is_large, run_in_thread
from gatewayd.http.openai.sampling import tier_of
from gatewayd.http.openai.sse_stream import SseStream
from gatewayd.http.openai.wire import Identity, Wire
from gatewayd.http.parse import parse
from gatewayd.http.routing.attempts import start_generation
from gatewayd.http.routing.generation_call import GenerationCall
from gatewayd.http.routing.routed import outline_of
from gatewayd.http.schema.generation import GenerationTable
from gatewayd.http.server.body_writer import body_writer
from gatewayd.http.server.disconnect import disconnect_signal
from gatewayd.http.services import Services
from gatewayd.pipeline.choice import ChoiceOptions
from gatewayd.tenants.principal import principal_of
from gatewayd_hooks.requests.tables import RequestTable

BODY_BYTES = "gatewayd.body_bytes"
"""Scope key of the length of the received body."""

RequestT = TypeVar("RequestT", bound=GenerationTable)
TableT = TypeVar("TableT", bound=RequestTable)


class PreparedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A validated request, ready for the engines.

    Attributes:
        requests: engine requests, one for each prompt.
        num_choices: for each prompt.
        options: of every choice.
        wire: encoder of the response.
        identity: fields that every chunk of the response repeats.
        ignored: accepted but ignored fields, in addition to those found by the schema.
    """

    requests: list[EngineRequest]
    num_choices: int
    options: ChoiceOptions
    wire: Wire
    identity: Identity
    ignored: Sequence[str] = ()


async def receive_request(
    services: Services, table: type[TableT], scope: Scope, receive: Receive
) -> tuple[TableT, list[str]]:
    """Receive and validate a body, in a thread if it is large, and enforce its sender's rights.

    Raises:
        GatewayError: the request is refused, or exceeds the rights of its sender.
        ClientGone: the client disconnected before the body's end.
    """
    body = await read_json_body(scope, receive, services.limits.body_bytes)
    scope[BODY_BYTES] = len(body)
    if len(body) > services.limits.thread_bytes:
        request, ignored = await body_threads.run_in_thread(lambda: parse(table, body))
    else:
        request, ignored = parse(table, body)
    return enforce_grant(request, ignored, principal_of(scope))


def identity_of(
    request: GenerationTable, prefix: str, request_id: str, model: str, *, with_logprobs: bool
) -> Identity:
    """Return the fields that every chunk of the response repeats."""
    stream = request.stream_options
    wants_usage = bool(request.stream and stream and stream.include_usage)
    return Identity(
        id=prefix + request_id.removeprefix("req_"),
        model=model,
        created=int(time.time()),
        include_usage=wants_usage,
        continuous_usage=bool(wants_usage and stream and stream.continuous_usage_stats),
        with_ids=bool(request.return_token_ids),
        with_logprobs=with_logprobs,
        with_prompt_logprobs=request.prompt_logprobs is not None,
        service_tier=tier_of(request),
    )


class GenerationRoute(ABC, Generic[RequestT]):
    """ASGI app of a generation route; subclasses prepare the request."""

    label: str
    table: type[RequestT]

    def __init__(self, services: Services) -> None:
        self._services = services

    @abstractmethod
    async def prepare(
        self, services: Services, request: RequestT, request_id: str
    ) -> PreparedRequest:
        """Validate a request and convert it to engine requests.

        Args:
            services: of the request's model.
            request: validated against its schema.
            request_id: the gateway's.

        Raises:
            GatewayError: the request is refused.
        """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        arrival = self._services.clock()
        request, ignored = await receive_request(self._services, self.table, scope, receive)
        request_id, principal = scope["request_id"], principal_of(scope)
        disconnect = disconnect_signal(scope, receive)
        services, prepared, generation = await start_generation(
            self._services,
            GenerationCall(
                model=request.model,
                request_id=request_id,
                endpoint=self.label,
                arrival=arrival,
                principal=principal,
                prepare=lambda services: self.prepare(services, request, request_id),
                outline=lambda: outline_of(request, request_id, principal),
                queue_timeout=request.queue_timeout,
                disconnect=disconnect,
            ),
        )
        # Called at once if the client has disconnected during the preparation.
        disconnect.add_listener(generation.abandon)
        try:
            headers = ignored_header([*ignored, *prepared.ignored])
            if request.stream:
                await SseStream(
                    generation,
                    prepared.wire,
                    send,
                    body_writer(scope),
                    headers=lambda: [*headers, *answer_headers(generation, services.fleet.room)],
                    ping_seconds=services.limits.ping_seconds,
                ).run()
            else:
                await generation.finish()
                write = partial(prepared.wire.answer, generation)
                if not generation.is_abandoned:
                    answer = await run_in_thread(write) if is_large(generation) else write()
                # Again: the client may disconnect while a large answer is encoded.
                if not generation.is_abandoned:
                    headers += answer_headers(generation, services.fleet.room)
                    await send_body(send, answer, headers=[JSON_HEADER, *headers])
        finally:
            generation.close()
            disconnect.remove_listener(generation.abandon)
