"""Operational endpoints: liveness, readiness, version, metrics and API documents."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from gatewayd.catalogue.target import Target
from gatewayd.http.asgi import Receive, Scope, Send, encode_json, send_body, send_json
from gatewayd.http.server.authentication import wants_details
from gatewayd.http.services import Services


class LiveRoute:
    """Liveness probe: 200 while the process responds."""

    label = "/livez"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        await send_json(send, {"status": "ok"})


class ReadyRoute:
    """Readiness probe: 200 while requests can be served, else 503."""

    label = "/readyz"

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response; with details for ``?verbose=1``, which requires authorization."""
        catalogue = self._services.catalogue
        answer: dict[str, Any] = {"status": catalogue.condition}
        if wants_details(scope):
            answer["version"] = self._services.version
            answer.update(_details(catalogue.default))
            if len(catalogue.targets) > 1:
                answer["models"] = [
                    {"status": target.fleet.condition, **_details(target)}
                    for target in catalogue.targets
                ]
        await send_json(send, answer, status=200 if catalogue.is_ready else 503)


def _details(target: Target) -> dict[str, Any]:
    return {
        "model": target.name,
        "max_model_len": target.max_model_len,
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
            for replica in target.fleet.status()
        ],
    }


class Version:
    """Version of the daemon."""

    label = "/version"

    def __init__(self, services: Services) -> None:
        self._version = services.version

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        await send_json(send, {"version": self._version})


class MetricsPage:
    """Metrics in Prometheus' text format."""

    label = "/metrics"

    def __init__(self, services: Services) -> None:
        self._catalogue = services.catalogue
        self._registry = services.metrics.registry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the metrics, after the engines have reported their resource usage."""
        await asyncio.gather(*[one.fleet.refresh_stats() for one in self._catalogue.targets])
        headers = [(b"content-type", CONTENT_TYPE_LATEST.encode())]
        await send_body(send, generate_latest(self._registry), headers=headers)


class Document:
    """API document, generated lazily at the first request so that it does not delay the start.

    Args:
        label: its path.
        make: generates the document; called in a thread.
    """

    def __init__(self, label: str, make: Callable[[], dict[str, Any]]) -> None:
        self.label = label
        self._make = make
        self._body: bytes | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        # Concurrent first requests may all generate it: the results are equal.
        if self._body is None:
            self._body = await asyncio.to_thread(lambda: encode_json(self._make()))
        await send_body(send, self._body)
