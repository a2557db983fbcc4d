"""What operators and load balancers ask: is it alive, is it ready, which version, what figures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from gatewayd.http.asgi import Receive, Scope, Send, encode_json, send_body, send_json
from gatewayd.http.server.authentication import wants_details
from gatewayd.http.services import Services


class LiveRoute:
    """200 while the process answers at all."""

    label = "/livez"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        await send_json(send, {"status": "ok"})


class ReadyRoute:
    """200 while a request sent now would be served now, else 503."""

    label = "/readyz"

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; with ``?verbose=1``, which is not for everybody, in detail."""
        fleet = self._services.fleet
        is_ready = fleet.is_ready
        answer: dict[str, Any] = {"status": fleet.condition}
        if wants_details(scope):
            answer.update(self._details())
        await send_json(send, answer, status=200 if is_ready else 503)

    def _details(self) -> dict[str, Any]:
        services = self._services
        model = services.fleet.model
        return {
            "version": services.version,
            "model": services.models[0],
            "max_model_len": None if model is None else model.max_model_len,
            "replicas": [
                {
                    "index": replica.index,
                    "state": replica.state.value,
                    "pid": replica.pid,
                    "uptime_seconds": round(replica.uptime_seconds, 3),
                    "restarts": replica.restarts,
                    "detail": replica.detail,
                    "num_running": replica.stats.num_running,
                    "num_waiting": replica.stats.num_waiting,
                }
                for replica in services.fleet.status()
            ],
        }


class Version:
    """The daemon's version."""

    label = "/version"

    def __init__(self, services: Services) -> None:
        self._version = services.version

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        await send_json(send, {"version": self._version})


class MetricsPage:
    """Prometheus' text format."""

    label = "/metrics"

    def __init__(self, services: Services) -> None:
        self._fleet = services.fleet
        self._registry = services.metrics.registry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, when the engines have said what they take."""
        await self._fleet.refresh_stats()
        headers = [(b"content-type", CONTENT_TYPE_LATEST.encode())]
        await send_body(send, generate_latest(self._registry), headers=headers)


class Document:
    """A description of the API, made when it is first asked for: a start need not wait for it.

    Args:
        label: its path.
        make: says what it says; called in a thread.
    """

    def __init__(self, label: str, make: Callable[[], dict[str, Any]]) -> None:
        self.label = label
        self._make = make
        self._body: bytes | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        if self._body is None:
            self._body = await asyncio.to_thread(lambda: encode_json(self._make()))
        await send_body(send, self._body)
