"""The service's procedures: each sends a request to the gateway and converts its answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote, unquote

import grpc
import grpc.aio
import msgspec
from google.protobuf.message import DecodeError

from gatewayd_hooks.protocols import CallAnswer, Gateway, RequestRefusal
from gatewayd_proto_kserve import answers
from gatewayd_proto_kserve.messages import (
    SERVICE,
    InferResponse,
    StreamInferResponse,
    message_class,
)
from gatewayd_proto_kserve.requests import BY_NAME, InferCall, check_version, convert

_log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode

Message = Any
Context = Any  # grpc.aio.ServicerContext
Procedure = Callable[[Message, Context], Awaitable[Message]]

_FORWARDED = frozenset(("authorization", "x-api-key", "x-request-id"))
"""Metadata that the gateway gets as headers."""
_LONGEST_NAME = 256
"""Characters of a model's name in requests."""
_MISTAKE = "an internal error of the gateway, which has logged it"
CODES: Mapping[int, grpc.StatusCode] = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    415: grpc.StatusCode.INVALID_ARGUMENT,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    499: grpc.StatusCode.CANCELLED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
    507: grpc.StatusCode.RESOURCE_EXHAUSTED,
}
"""Codes of HTTP statuses; others are ``INTERNAL``."""


class KserveService:
    """Procedures of ``GRPCInferenceService``; to be created in the event loop.

    Args:
        gateway: that answers.
        idle_seconds: in which a call must send its request, and a stream its next one.
    """

    def __init__(self, gateway: Gateway, idle_seconds: float) -> None:
        self._gateway = gateway
        self._idle_seconds = idle_seconds
        self._stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def stop(self) -> None:
        """End streams that wait for a request now, and others after the one that runs."""
        self._stopping.set_result(None)

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler of all procedures."""
        unary: dict[str, Procedure] = {
            "ServerLive": self._server_live,
            "ServerReady": self._server_ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server_metadata,
            "ModelMetadata": self._model_metadata,
            "ModelInfer": self._model_infer,
        }
        handlers = {
            # On the wire the same as unary calls, whose handlers would be called with the request:
            # a client that never sends one would keep one of the places.
            name: grpc.stream_unary_rpc_method_handler(
                self._unary(procedure),
                request_deserializer=message_class(f"{name}Request").FromString,
                response_serializer=message_class(f"{name}Response").SerializeToString,
            )
            for name, procedure in unary.items()
        }
        handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
            self._model_stream_infer,
            request_deserializer=message_class("ModelInferRequest").FromString,
            response_serializer=StreamInferResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def _unary(self, procedure: Procedure) -> Procedure:
        """Return the handler of a procedure with one request."""

        async def answered(requests: AsyncIterator[Message], context: Context) -> Message:
            request = await self._next(requests, context)
            if request is None:
                raise RequestRefusal(400, "the call has no request")
            return await procedure(request, context)

        return _fenced(answered)

    async def _server_live(self, request: Message, context: Context) -> Message:
        async with self._called(context, "GET", "/livez"):
            return message_class("ServerLiveResponse")(live=True)

    async def _server_ready(self, request: Message, context: Context) -> Message:
        make = message_class("ServerReadyResponse")
        try:
            async with self._called(context, "GET", "/readyz"):
                return make(ready=True)
        except RequestRefusal as refusal:
            if refusal.status != 503:
                raise
            return make(ready=False)

    async def _model_ready(self, request: Message, context: Context) -> Message:
        found = await self._read(context, _model_target(request))
        return message_class("ModelReadyResponse")(ready=found["ready"])

    async def _server_metadata(self, request: Message, context: Context) -> Message:
        return message_class("ServerMetadataResponse")(**await self._read(context, "/v2"))

    async def _model_metadata(self, request: Message, context: Context) -> Message:
        found = await self._read(context, _model_target(request))
        del found["ready"]
        return message_class("ModelMetadataResponse")(**found)

    async def _model_infer(self, request: Message, context: Context) -> Message:
        return await self._whole(convert(request, can_stream=False), context)

    async def _model_stream_infer(
        self, requests: AsyncIterator[Message], context: Context
    ) -> AsyncIterator[Message]:
        """Answer the requests of a stream one after another; an error ends its request alone."""
        # Without a key no stream may wait for its first request.
        await _fenced(self._server_metadata)(None, context)
        read = _fenced(self._next)
        while (request := await read(requests, context)) is not None:
            try:
                call = convert(request, can_stream=True)
                if not call.is_stream:
                    response = await self._whole(call, context, is_final=True)
                    yield StreamInferResponse(infer_response=response)
                    continue
                async with self._completion(call, context) as answer:
                    async for response in answers.streamed(call, answer.body, _ignored(answer)):
                        yield StreamInferResponse(infer_response=response)
            except RequestRefusal as refusal:
                # Without a valid key no other request of the stream would be answered either.
                if refusal.status == 401:
                    await _abort(context, refusal)
                yield _failed(request, refusal.message)
            except ConnectionError:
                yield _failed(request, "the answer was cut off")
            except Exception:  # noqa: BLE001 - otherwise its text would reach the client
                _log.exception("a streamed request failed")
                yield _failed(request, _MISTAKE)

    async def _next(self, requests: AsyncIterator[Message], context: Context) -> Message | None:
        """Return the next request of a call; None at its end.

        Raises:
            RequestRefusal: none came in time or before the gateway's end, or it is no message.
        """
        reading = asyncio.ensure_future(context.read())
        try:
            await asyncio.wait(
                (reading, self._stopping),
                timeout=self._idle_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if self._stopping.done():
                raise RequestRefusal(503, "the gateway is shutting down")
            if not reading.done():
                raise RequestRefusal(408, f"no request was sent for {self._idle_seconds:g} s")
            request = reading.result()
        except DecodeError as error:
            raise RequestRefusal(400, "the request is not this procedure's message") from error
        finally:
            reading.cancel()
        return None if request is grpc.aio.EOF else request

    async def _whole(self, call: InferCall, context: Context, *, is_final: bool = False) -> Message:
        async with self._completion(call, context) as answer:
            return answers.whole(call, await answer.read(), _ignored(answer), is_final=is_final)

    @asynccontextmanager
    async def _completion(self, call: InferCall, context: Context) -> AsyncIterator[CallAnswer]:
        body = _encode(call.body)
        try:
            async with self._called(context, "POST", "/v1/completions", body) as answer:
                yield answer
        except RequestRefusal as refusal:
            raise (refusal.at("text_input") if refusal.param == "prompt" else refusal) from refusal

    async def _read(self, context: Context, target: str) -> dict[str, Any]:
        async with self._called(context, "GET", target) as answer:
            found: dict[str, Any] = msgspec.json.decode(await answer.read())
        return found

    @asynccontextmanager
    async def _called(
        self, context: Context, method: str, target: str, body: bytes = b""
    ) -> AsyncIterator[CallAnswer]:
        """Send a request with the client's credentials; left early, also by its cancellation.

        Raises:
            RequestRefusal: its status is an error.
        """
        headers = {
            name: value
            for name, value in context.invocation_metadata() or ()
            if name in _FORWARDED and isinstance(value, str)
        }
        if body:
            headers["content-type"] = "application/json"
        client = _address(context.peer())
        async with self._gateway.call(
            method, target, headers=headers, body=body, client=client
        ) as answer:
            if answer.status >= 400:
                raise _refusal(answer.status, await answer.read(), answer.headers)
            yield answer


def _fenced(procedure: Procedure) -> Procedure:
    """Return a procedure whose exceptions become statuses."""

    async def fenced(request: Message, context: Context) -> Message:
        try:
            return await procedure(request, context)
        except RequestRefusal as error:
            refusal = error
        except ConnectionError:
            refusal = RequestRefusal(503, "the answer was cut off")
        except Exception:  # noqa: BLE001 - otherwise its text would reach the client
            _log.exception("a request failed")
            refusal = RequestRefusal(500, _MISTAKE)
        return await _abort(context, refusal)

    return fenced


async def _abort(context: Context, refusal: RequestRefusal) -> Message:
    """End a call with a status."""
    trailing = () if refusal.retry_after is None else (("retry-after", f"{refusal.retry_after:g}"),)
    code = CODES.get(refusal.status, grpc.StatusCode.INTERNAL)
    await context.abort(code, refusal.message, trailing)


def _failed(request: Message, message: str) -> Message:
    response = InferResponse(model_name=request.model_name, id=request.id)
    response.parameters[answers.FINAL].bool_param = True
    return StreamInferResponse(error_message=message, infer_response=response)


def _refusal(status: int, body: bytes, headers: Mapping[str, str]) -> RequestRefusal:
    """Return an error answer of the gateway, whose body has OpenAI's format or this protocol's."""
    error: Any = msgspec.json.decode(body).get("error", "") if body.startswith(b"{") else ""
    if not isinstance(error, dict):
        error = {"message": error}
    retry = headers.get("retry-after", "")
    return RequestRefusal(
        status,
        error.get("message") or f"the gateway answered with status {status}",
        code=error.get("code") or "",
        param=error.get("param"),
        retry_after=int(retry) if retry.isdigit() else None,
    )


def _ignored(answer: CallAnswer) -> str:
    return answer.headers.get("x-gateway-ignored-params", "")


def _model_target(request: Message) -> str:
    check_version(request.version)
    # One character more than a name has: a longer one remains unknown.
    return f"{BY_NAME}?name={quote(request.name[: _LONGEST_NAME + 1], safe='')}"


def _address(peer: str) -> str | None:
    """Return the address of a peer such as ``ipv4:127.0.0.1:1234`` or ``ipv6:%5B::1%5D:1234``."""
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return None
    return unquote(rest).rpartition(":")[0].strip("[]")
