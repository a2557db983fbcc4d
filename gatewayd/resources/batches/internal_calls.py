"""Requests from inside: the data plane's own app, called without a connection."""

from __future__ import annotations

from typing import NamedTuple

from gatewayd.http.asgi import App, Message, Scope
from gatewayd.http.server.disconnect import EXTENSION, ToldDeparture
from gatewayd.store.disk_quota import ACCEPTED
from gatewayd.tenants.principal import IN_SCOPE, Principal


class InternalAnswer(NamedTuple):
    """What came back.

    Attributes:
        status: of the answer.
        body: all of it.
        request_id: that the gateway gave.
        retry_after: seconds, if it asks to wait.
    """

    status: int
    body: bytes
    request_id: str
    retry_after: float | None


async def call(app: App, path: str, body: bytes, principal: Principal) -> InternalAnswer:
    """Send a JSON body and wait for the whole answer; whoever is cancelled leaves like a client."""
    incoming: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    status, headers, pieces = 0, dict[bytes, bytes](), list[bytes]()

    async def receive() -> Message:
        return incoming.pop() if incoming else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            headers.update(message["headers"])
        else:
            pieces.append(message.get("body", b""))

    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"host", b"localhost"),
        ],
        "client": None,
        "server": None,
        "extensions": {EXTENSION: ToldDeparture(), ACCEPTED: {}},
        IN_SCOPE: principal,
    }
    await app(scope, receive, send)
    retry = headers.get(b"retry-after", b"")
    return InternalAnswer(
        status,
        b"".join(pieces),
        headers.get(b"x-request-id", b"").decode(),
        float(retry) if retry.isdigit() else None,
    )
