"""The port, and routes of the gateway that answer what gRPC clients ask about servers and models.

These routes are KServe's over HTTP, so that the rights of a key and the limits of a tenant are
checked where all requests are.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import math
from collections.abc import Sequence
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import msgspec

from gatewayd_hooks.protocols import (
    Gateway,
    Handler,
    HttpRequest,
    HttpResponse,
    RequestRefusal,
    Route,
)
from gatewayd_proto_kserve.config import KserveConfig
from gatewayd_proto_kserve.requests import BY_NAME, INPUTS, OUTPUT, VERSION

if TYPE_CHECKING:
    from gatewayd_hooks.resources import GatewayResources
    from gatewayd_proto_kserve.service import KserveService

_log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode
_CHECK_SECONDS = 10.0
"""After which it remains unknown whether a key is needed."""


class Kserve:
    """KServe v2 over gRPC."""

    def __init__(self, config: KserveConfig) -> None:
        self._config = config
        self._gateway: Gateway | None = None
        self._server: Any = None  # grpc.aio.Server
        self._service: KserveService | None = None
        self._checking: asyncio.Task[None] | None = None

    def open(self, resources: GatewayResources) -> None:
        """Import gRPC.

        Raises:
            ImportError: it is not installed.
        """
        try:
            importlib.import_module("gatewayd_proto_kserve.service")
        except ImportError as error:
            raise ImportError(
                f"gRPC cannot be imported ({error}); pip install 'gatewayd[grpc]'"
            ) from error

    def close(self) -> None:
        """Do nothing: ``stop`` closes the port."""

    def routes(self, gateway: Gateway) -> Sequence[Route]:
        """Return the routes about the server and its models."""
        self._gateway = gateway
        return [
            Route("GET", "/v2", _server(gateway), "Server metadata (KServe)"),
            # For gRPC: in a path some names, such as one that ends in "/ready", are other routes'.
            Route("GET", BY_NAME, _by_name(gateway), "Metadata and readiness of a model (KServe)"),
            Route(
                *("GET", "/v2/models/{name:path}/ready", _ready(gateway)),
                "Readiness of a model (KServe)",
            ),
            Route("GET", "/v2/models/{name:path}", _model(gateway), "Model metadata (KServe)"),
        ]

    def error(self, refusal: RequestRefusal, request_id: str) -> HttpResponse:
        """Return the message alone, as in KServe's HTTP API."""
        return HttpResponse(_encode({"error": refusal.message}), status=refusal.status)

    def late_error(self, refusal: RequestRefusal, request_id: str) -> bytes:
        """Return the same; no route streams."""
        return _encode({"error": refusal.message})

    async def start(self) -> None:
        """Listen.

        Raises:
            RuntimeError: the address cannot be used.
        """
        import grpc.aio

        from gatewayd_proto_kserve.service import KserveService

        gateway, config = self._gateway, self._config
        if gateway is None:
            raise RuntimeError("routes() was not called")
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", config.message_bytes),
                ("grpc.max_concurrent_streams", config.concurrency),
                ("grpc.max_allowed_incoming_connections", config.connections),
                ("grpc.max_connection_idle_ms", math.ceil(config.idle_seconds * 1000)),
                # Otherwise two daemons could share a port without noticing.
                ("grpc.so_reuseport", 0),
            ],
            maximum_concurrent_rpcs=config.concurrency,
        )
        service = KserveService(gateway, config.idle_seconds)
        server.add_generic_rpc_handlers((service.handler(),))
        host = f"[{config.host}]" if ":" in config.host else config.host
        port = server.add_insecure_port(f"{host}:{config.port}")
        await server.start()
        self._server, self._service = server, service
        _log.info("KServe's gRPC API listens on %s:%d", host, port)
        if not _is_loopback(config.host):
            # Not awaited: the port is served, whatever comes of it and when.
            self._checking = asyncio.create_task(self._warn_if_open(gateway), name="kserve check")

    async def stop(self, seconds: float) -> None:
        """Refuse new requests, and wait for the running ones."""
        if self._checking is not None:
            self._checking.cancel()
        server, service = self._server, self._service
        if server is None or service is None:
            return
        service.stop()
        try:
            await server.stop(seconds)
        except asyncio.CancelledError:
            await server.stop(0)
            raise

    async def _warn_if_open(self, gateway: Gateway) -> None:
        """Find out as a client whether a key is needed, and warn unless it is."""
        host = self._config.host
        try:
            async with (
                asyncio.timeout(_CHECK_SECONDS),
                gateway.call("GET", "/v2", headers={}) as answer,
            ):
                status = answer.status
        except Exception as error:  # noqa: BLE001 - whatever fails, the port is served
            reason = f"{type(error).__name__} {error}".strip()
        else:
            if status in (401, 403):
                return
            if status == 200:
                _log.warning(
                    "without an API key every machine that reaches %s can use the models: set"
                    " server.api_key, or [protocol.kserve] host to 127.0.0.1",
                    host,
                )
                return
            reason = f"status {status}"
        _log.warning(
            "KServe's gRPC API is served at %s, but whether it needs an API key could not be found"
            " out (%s): see that server.api_key is set",
            *(host, reason),
        )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _server(gateway: Gateway) -> Handler:
    async def server(request: HttpRequest) -> HttpResponse:
        return HttpResponse(
            _encode({"name": "gatewayd", "version": gateway.version, "extensions": []})
        )

    return server


def _by_name(gateway: Gateway) -> Handler:
    async def by_name(request: HttpRequest) -> HttpResponse:
        if not (name := request.query.get("name", "")):
            raise RequestRefusal(400, "name is empty; it must be that of a model", param="name")
        _check_served(gateway, name)
        return HttpResponse(_encode({**_metadata(name), "ready": gateway.is_ready(name)}))

    return by_name


def _ready(gateway: Gateway) -> Handler:
    async def ready(request: HttpRequest) -> HttpResponse:
        name = request.params.get("name", "")
        _check_served(gateway, name)
        return HttpResponse(_encode({"name": name, "ready": gateway.is_ready(name)}))

    return ready


def _model(gateway: Gateway) -> Handler:
    async def model(request: HttpRequest) -> HttpResponse:
        name = request.params.get("name", "")
        _check_served(gateway, name)
        return HttpResponse(_encode(_metadata(name)))

    return model


def _metadata(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "versions": [VERSION],
        "platform": "gatewayd",
        "inputs": [
            {"name": each, "datatype": datatype, "shape": [1]} for each, datatype in INPUTS.items()
        ],
        "outputs": [{"name": OUTPUT, "datatype": "BYTES", "shape": [1]}],
    }


def _check_served(gateway: Gateway, name: str) -> None:
    """Check that a model is served.

    Raises:
        RequestRefusal: the key sees no model of that name.
    """
    names = gateway.models
    if name not in names:
        raise RequestRefusal(
            404,
            f"there is no model {name[:64]!r}; served are: {', '.join(names)}",
            code="model_not_found",
        )
