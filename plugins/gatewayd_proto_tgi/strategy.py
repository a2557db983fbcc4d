"""Routes ``/generate``, ``/generate_stream``, ``/`` and ``/info``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from gatewayd_hooks.protocols import (
    ChatAnswer,
    Gateway,
    Handler,
    HttpRequest,
    HttpResponse,
    RequestRefusal,
    Route,
)
from gatewayd_hooks.requests.fields import MAX_CHOICES, MAX_STOPS
from gatewayd_proto_tgi.answers import TgiEvents, TgiSequence, encode_event, error_body, whole
from gatewayd_proto_tgi.config import TgiConfig
from gatewayd_proto_tgi.requests import RENAMED, TgiRequest, convert, translated
from gatewayd_proto_tgi.tables import TgiCompatRequest, TgiGenerateRequest

if TYPE_CHECKING:
    from gatewayd_hooks.resources import GatewayResources

_encode = msgspec.json.Encoder().encode


class Tgi:
    """The generate API on top of completions."""

    def __init__(self, config: TgiConfig) -> None:
        self._max_new_tokens = config.max_new_tokens

    def open(self, resources: GatewayResources) -> None:
        """Do nothing: no resources are needed."""

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def routes(self, gateway: Gateway) -> Sequence[Route]:
        """Return the routes for generation, and for model information."""
        whole = self._generating(gateway, TgiGenerateRequest)
        stream = self._generating(gateway, TgiGenerateRequest, is_stream=True)
        compat = self._generating(gateway, TgiCompatRequest)
        return [
            Route("POST", "/generate", whole, "Generate (TGI)", request=TgiGenerateRequest),
            Route(
                *("POST", "/generate_stream", stream, "Generate as a stream (TGI)"),
                request=TgiGenerateRequest,
            ),
            Route("POST", "/", compat, "Generate (TGI)", request=TgiCompatRequest),
            Route("GET", "/info", _informing(gateway), "Model information (TGI)"),
        ]

    def error(self, refusal: RequestRefusal, request_id: str) -> HttpResponse:
        """Return an object with message and type."""
        return HttpResponse(_encode(error_body(refusal)), status=refusal.status)

    def late_error(self, refusal: RequestRefusal, request_id: str) -> bytes:
        """Return the same as an event."""
        return encode_event(error_body(refusal))

    def _generating(
        self,
        gateway: Gateway,
        table: type[TgiGenerateRequest | TgiCompatRequest],
        *,
        is_stream: bool = False,
    ) -> Handler:
        read = partial(
            convert, table=table, default_tokens=self._max_new_tokens, is_stream=is_stream
        )

        async def generating(request: HttpRequest) -> HttpResponse:
            converted = await gateway.read(request, read)
            converted.body["model"] = _model(gateway)
            answer = await _start(gateway, converted, request)
            if converted.is_stream:
                return HttpResponse(
                    _stream(answer, converted),
                    content_type="text/event-stream",
                    headers={"cache-control": "no-cache"},
                    ignored=converted.ignored,
                    names=RENAMED,
                    keepalive=b":\n\n",
                )
            found: Any = await _whole(answer, converted)
            # As there: a list, whose clients read the first entry.
            body = [found] if table is TgiCompatRequest else found
            return HttpResponse(_encode(body), ignored=converted.ignored, names=RENAMED)

        return generating


def _model(gateway: Gateway) -> str:
    """Return the name of the served model, which requests do not have.

    Raises:
        RequestRefusal: the request's key may use none.
    """
    if not gateway.models:
        raise RequestRefusal(
            403, "this API key may use no served model", code="model_not_permitted"
        )
    return gateway.models[0]


async def _start(gateway: Gateway, converted: TgiRequest, request: HttpRequest) -> ChatAnswer:
    """Start generation; the default number of tokens is reduced to the rest of the context."""
    try:
        with translated():
            return await gateway.generate(converted.body, request)
    except RequestRefusal as refusal:
        if converted.has_limit or (refusal.code, refusal.param) != (
            "context_length_exceeded",
            "parameters.max_new_tokens",
        ):
            raise
    body = {name: value for name, value in converted.body.items() if name != "max_tokens"}
    with translated():
        return await gateway.generate(body, request)


async def _stream(answer: ChatAnswer, converted: TgiRequest) -> AsyncIterator[bytes]:
    """Yield one piece for all output since the last one."""
    events = TgiEvents(converted)
    try:
        with translated():
            async for delta in answer:
                usage = answer.usage
                piece = events.read(
                    delta, input_length=usage.prompt_tokens, num_tokens=usage.completion_tokens
                )
                if piece:
                    yield piece
    finally:
        # Also when the client disconnects, which ends the generation.
        answer.close()


async def _whole(answer: ChatAnswer, converted: TgiRequest) -> dict[str, Any]:
    sequences = [TgiSequence() for _ in range(converted.body.get("n", 1))]
    with translated():
        async for delta in answer:
            sequences[delta.choice].read(delta)
    return whole(converted, sequences, answer.pop_scored_prompt(), answer.usage.completion_tokens)


def _informing(gateway: Gateway) -> Handler:
    async def informing(request: HttpRequest) -> HttpResponse:
        name = _model(gateway)
        model = gateway.describe(name)
        if model is None:
            raise RequestRefusal(
                503,
                f"the model {name} was never loaded: the first request loads it",
                code="engine_unavailable",
                retry_after=5,
            )
        found = {
            "model_id": name,
            "model_dtype": model.dtype,
            "model_pipeline_tag": "text-generation",
            "max_best_of": MAX_CHOICES,
            "max_stop_sequences": MAX_STOPS,
            "max_input_tokens": model.context_length - 1,
            "max_total_tokens": model.context_length,
            "max_client_batch_size": 1,
            "router": "gatewayd",
            "version": gateway.version,
        }
        return HttpResponse(_encode(found))

    return informing
