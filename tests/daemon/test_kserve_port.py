"""The port of KServe v2: how it opens, fails and drains."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gatewayd.plugins.own_ports import OwnPorts
from gatewayd_hooks.protocols import CallAnswer
from gatewayd_hooks.testing.fake_gateway import FakeGateway
from gatewayd_proto_kserve.config import KserveConfig
from gatewayd_proto_kserve.strategy import Kserve
from tests.daemon.conftest import nano_daemon
from tests.daemon.test_kserve import (
    LONG,
    Stream,
    address,
    completion,
    connected,
    environment,
    infer,
    parameters,
    said,
)

grpc = pytest.importorskip("grpc")
triton = pytest.importorskip("tritonclient.grpc")


def test_a_drain_completes_answers_and_closes_the_port(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with (
        nano_daemon(tmp_path_factory.mktemp("drain"), **environment()) as daemon,
        connected(daemon) as client,
    ):
        where = address(daemon)
        stream = Stream(client)
        stream.send(parameters={**LONG, "max_tokens": 300})
        assert stream.next()[1] is None
        with connected(daemon) as other:
            idle = Stream(other)
            idle.send(parameters={"max_tokens": 1})
            assert idle.rest()
            daemon.process.send_signal(signal.SIGTERM)
            # One that waits for a request would hold up the end.
            assert idle.next()[1].status() == "StatusCode.UNAVAILABLE"
        rest = stream.rest()
        assert parameters(rest[-1])["completion_tokens"] == 300
        assert "shutting down" in stream.next()[1].message()
        assert daemon.process.wait(30) == 0
        host, port = where.split(":")
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((host, int(port)), timeout=5)


def test_a_port_in_use_leaves_the_daemon_running(tmp_path_factory: pytest.TempPathFactory) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        env = environment(GATEWAYD_PROTOCOL__KSERVE__PORT=str(taken.getsockname()[1]))
        with nano_daemon(tmp_path_factory.mktemp("taken"), **env) as daemon:
            assert daemon.said("protocol kserve cannot serve its own port")
            assert completion(daemon, max_tokens=1)["usage"]["completion_tokens"] == 1


def test_an_open_address_is_warned_of(tmp_path_factory: pytest.TempPathFactory) -> None:
    env = environment(GATEWAYD_PROTOCOL__KSERVE__HOST="0.0.0.0")
    open_env = {name: value for name, value in env.items() if not name.endswith("API_KEY")}
    for each, warns in ((env, False), (open_env, True)):
        with nano_daemon(tmp_path_factory.mktemp("open"), **each) as daemon:
            assert daemon.said("without an API key every machine") is warns
            with triton.InferenceServerClient(f"127.0.0.1:{address(daemon).split(':')[1]}") as one:
                assert said(infer(one, parameters={"max_tokens": 2}))


class Unhelpful(FakeGateway):
    """Answers with a status, with an error, or (0) never."""

    def __init__(self, found: int | Exception) -> None:
        super().__init__()
        self.found = found

    @asynccontextmanager
    async def call(
        self, method: str, target: str, **options: Any
    ) -> AsyncGenerator[CallAnswer, None]:
        if isinstance(self.found, Exception):
            raise self.found
        await (asyncio.sleep(0) if self.found else asyncio.Event().wait())
        yield CallAnswer(self.found, {}, empty())


async def empty() -> AsyncIterator[bytes]:
    yield b""


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (ConnectionError("the request was not answered"), "ConnectionError the request was not"),
        (0, "TimeoutError"),
        (500, "status 500"),
        (401, None),
    ],
)
async def test_a_port_that_is_served_is_not_called_a_failed_one(
    found: int | Exception,
    reason: str | None,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only whether it needs a key is unknown, which must not hold up the start either."""
    monkeypatch.setattr("gatewayd_proto_kserve.strategy._CHECK_SECONDS", 0.2)
    monkeypatch.setattr("gatewayd.plugins.own_ports._START_SECONDS", 0.15)
    caplog.set_level("INFO")
    strategy = Kserve(KserveConfig(host="0.0.0.0", port=0))
    strategy.routes(Unhelpful(found))
    ports = OwnPorts([("kserve", strategy)])
    await ports.start()
    (port,) = re.findall(r"listens on 0\.0\.0\.0:(\d+)", caplog.text)
    _, writer = await asyncio.open_connection("127.0.0.1", int(port))
    writer.close()
    await asyncio.sleep(0.4)
    await ports.stop(0)
    assert "cannot serve" not in caplog.text
    assert ("could not be found out" in caplog.text) is (reason is not None)
    assert f"({reason}" in caplog.text or reason is None
