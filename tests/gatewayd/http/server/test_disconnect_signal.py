"""Disconnect signal: reaches a request, with and without the edge."""

from __future__ import annotations

import asyncio
import logging

import pytest

from gatewayd.http.app import build_app
from gatewayd.http.asgi import Message, encode_json
from gatewayd.http.server.disconnect import EXTENSION, EdgeDisconnectSignal, disconnect_signal
from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import FakeFleet, hangs
from tests.gatewayd.gateway import CHAT, until
from tests.gatewayd.one_model import one_model


async def nothing() -> Message:
    raise AssertionError("the edge tells; nobody receives")


def test_a_departure_is_told_once_to_whoever_listens() -> None:
    told: list[str] = []
    departure = EdgeDisconnectSignal()
    assert disconnect_signal({"extensions": {EXTENSION: departure}}, nothing) is departure

    def first() -> None:
        told.append("first")

    def second() -> None:
        told.append("second")

    departure.add_listener(first)
    departure.add_listener(second)
    departure.remove_listener(second)
    departure.remove_listener(second)
    departure.notify()
    departure.notify()
    assert told == ["first"]


def test_what_cannot_be_told_keeps_nobody_else_from_it(caplog: pytest.LogCaptureFixture) -> None:
    departure, told = EdgeDisconnectSignal(), set[int]()

    def gone(number: int) -> None:
        if number % 3 == 0:
            raise RuntimeError(f"number {number} is stuck")
        told.add(number)

    for number in range(30):
        departure.add_listener(lambda number=number: gone(number))  # type: ignore[misc]
    with caplog.at_level(logging.ERROR):
        departure.notify()
    assert told == {number for number in range(30) if number % 3}
    logged = {str(record.exc_info[1]) for record in caplog.records if record.exc_info}
    assert logged == {f"number {number} is stuck" for number in range(0, 30, 3)}


def test_listening_after_the_departure_is_told_at_once() -> None:
    told: list[int] = []
    departure = EdgeDisconnectSignal()
    departure.notify()
    departure.add_listener(lambda: told.append(1))
    assert told == [1]


async def test_a_server_without_the_extension_is_asked_for_messages(text: TextModel) -> None:
    fleet = FakeFleet(hangs)
    app = build_app(one_model(fleet, text))
    messages: asyncio.Queue[Message] = asyncio.Queue()
    messages.put_nowait({"type": "http.request", "body": encode_json(CHAT), "more_body": False})
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/chat/completions",
        "headers": [(b"host", b"x"), (b"content-type", b"application/json")],
    }
    serving = asyncio.ensure_future(app(scope, messages.get, send))
    await until(lambda: fleet.jobs)
    assert not fleet.jobs[0].gone.is_set()
    messages.put_nowait({"type": "http.disconnect"})
    async with asyncio.timeout(30):
        await serving
    assert fleet.jobs[0].gone.is_set()
    assert sent == []
