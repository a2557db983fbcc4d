"""Protocol conformance: rejects dropped clients and invented content."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import pytest

from gatewayd_hooks.protocols import HttpRequest, HttpResponse, RequestRefusal
from gatewayd_hooks.requests.tables import RequestTable, Unsupported
from gatewayd_hooks.strategy import Kind
from gatewayd_hooks.testing.fake_gateway import request
from gatewayd_hooks.testing.protocols import ProtocolConformance

Verdict = Callable[..., list[str]]
Catches = Callable[..., bool]
GUIDE = (Path(__file__).parents[3] / "docs" / "plugins" / "protocols.md").read_text("utf-8")


class Chats(ProtocolConformance):
    """With something to answer."""

    def conversations(self) -> list[HttpRequest]:
        body = b'{"model":"nano","messages":[{"role":"user","content":"hi"}]}'
        return [request("POST", "/api/chat", body)]


def test_a_sound_one_passes(verdict: Verdict) -> None:
    assert verdict(Chats, Kind.PROTOCOL, "ollama") == []


# Each of these breaks one rule of a sound strategy, which is changed in place.


def replaced(protocol: Any, change: Callable[[Any, HttpRequest], Any]) -> None:
    """Answer chats in another way; ``change`` is given the handler that was there."""
    routes = protocol.routes

    def broken(gateway: Any) -> list[Any]:
        return [
            route._replace(handler=lambda asked, handler=route.handler: change(handler, asked))
            if route.path == "/api/chat"
            else route
            for route in routes(gateway)
        ]

    protocol.routes = broken


def raises_a_key_error(protocol: Any) -> None:
    async def change(handler: Any, asked: HttpRequest) -> HttpResponse:
        asked.json()["model"]
        response: HttpResponse = await handler(asked)
        return response

    replaced(protocol, change)


def hides_what_failed(protocol: Any) -> None:
    async def change(handler: Any, asked: HttpRequest) -> HttpResponse:
        response: HttpResponse = await handler(asked)

        async def pieces() -> AsyncIterator[bytes]:
            try:
                async for piece in response.body:  # type: ignore[union-attr]
                    yield piece
            except RequestRefusal:
                pass

        return HttpResponse(pieces() if not isinstance(response.body, bytes) else response.body)

    replaced(protocol, change)


def asks_nobody(protocol: Any) -> None:
    async def change(handler: Any, asked: HttpRequest) -> HttpResponse:
        return HttpResponse(b"42")

    replaced(protocol, change)


def never_closed(protocol: Any) -> None:
    class Pieces:
        """An iterator that nobody can tell that it is over."""

        def __init__(self, body: Any) -> None:
            self._body = body

        def __aiter__(self) -> Any:
            return self

        def __anext__(self) -> Any:
            return anext(self._body)

    async def change(handler: Any, asked: HttpRequest) -> HttpResponse:
        response: HttpResponse = await handler(asked)
        is_whole = isinstance(response.body, bytes)
        return response if is_whole else HttpResponse(Pieces(response.body))

    replaced(protocol, change)


def errors_without_a_reason(protocol: Any) -> None:
    protocol.error = lambda refusal, request_id: HttpResponse(b"no", status=refusal.status)


def says_that_it_is_the_server(protocol: Any) -> None:
    error = protocol.error
    protocol.error = lambda refusal, request_id: HttpResponse(
        error(refusal, request_id).body, status=500
    )


def one_route_twice(protocol: Any) -> None:
    routes = protocol.routes
    protocol.routes = lambda gateway: [*routes(gateway), routes(gateway)[0]]


def takes_more_than_its_table(protocol: Any) -> None:
    class Narrow(RequestTable):
        """In which nothing may be streamed."""

        model: str
        stream: Annotated[Any, Unsupported("lines are not written")] = None

    routes = protocol.routes
    protocol.routes = lambda gateway: [
        route._replace(request=Narrow) if route.path == "/api/chat" else route
        for route in routes(gateway)
    ]


def drops_fields_in_silence(protocol: Any) -> None:
    async def change(handler: Any, asked: HttpRequest) -> HttpResponse:
        response: HttpResponse = await handler(asked)
        return replace(response, ignored=())

    replaced(protocol, change)


def stops_only_what_started(protocol: Any) -> None:
    protocol.port = None

    async def start() -> None:
        protocol.port = 1

    async def stop(seconds: float) -> None:
        protocol.port += 1

    protocol.start, protocol.stop = start, stop


@pytest.mark.parametrize(
    "broken",
    [
        stops_only_what_started,
        takes_more_than_its_table,
        drops_fields_in_silence,
        raises_a_key_error,
        hides_what_failed,
        asks_nobody,
        never_closed,
        errors_without_a_reason,
        says_that_it_is_the_server,
        one_route_twice,
    ],
)
def test_a_broken_one_fails(catches: Catches, broken: Callable[[Any], None]) -> None:
    assert catches(Chats, Kind.PROTOCOL, "ollama", broken)


def test_the_protocol_of_the_guide_is_a_sound_one() -> None:
    (_, code), *others = re.findall(r"(```python\n)([^`]*``POST /telegram.*?)```\n", GUIDE, re.S)
    assert others == []
    names: dict[str, Any] = {}
    exec(code, names)

    class Telegrams(ProtocolConformance):
        def make(self) -> Any:
            return names["Telegram"]()

        def conversations(self) -> list[HttpRequest]:
            return [request("POST", "/telegram", b"Why?")]

    tests = [name for name in dir(Telegrams) if name.startswith("test_")]
    assert len(tests) == 12
    for name in tests:
        getattr(Telegrams(), name)()
