"""In-process requests: the data plane's ASGI app, called without a connection."""

from __future__ import annotations

from typing import NamedTuple

from gatewayd.http.asgi import App, Message
from gatewayd.http.in_process import scope_of
from gatewayd.http.server.disconnect import EdgeDisconnectSignal
from gatewayd.store.disk_quota import ACCEPTED
from gatewayd.tenants.principal import IN_SCOPE, Principal


class InternalAnswer(NamedTuple):
    """Response of an in-process request.

    Attributes:
        status: HTTP status.
        body: complete body.
        request_id: id given by the gateway.
        retry_after: seconds to wait before a retry, or None.
    """

    status: int
    body: bytes
    request_id: str
    retry_after: float | None


async def call(app: App, path: str, body: bytes, principal: Principal) -> InternalAnswer:
    """Send a JSON body and wait for the response; cancellation acts as a client's disconnect."""
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

    scope = scope_of(
        "POST", path, [(b"content-type", b"application/json")], body, EdgeDisconnectSignal()
    )
    scope["extensions"][ACCEPTED] = {}
    # Stands for authentication, which the app of batch lines does not have.
    scope[IN_SCOPE] = principal
    await app(scope, receive, send)
    retry = headers.get(b"retry-after", b"")
    return InternalAnswer(
        status,
        b"".join(pieces),
        headers.get(b"x-request-id", b"").decode(),
        float(retry) if retry.isdigit() else None,
    )
