"""Fixtures: a scripted completions server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gatewayd_lang import Server
from tests.lang.fake_server import FakeServer


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    server = FakeServer()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def server(fake: FakeServer) -> Iterator[Server]:
    with Server(fake.url) as server:
        yield server
