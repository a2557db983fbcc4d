"""KServe's port, over a gateway that is none: bounds, statuses, and what clients are not told."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("grpc")
pytest.importorskip("google.protobuf")

import grpc.aio

from gatewayd_hooks.protocols import CallAnswer
from gatewayd_hooks.resources import GatewayResources
from gatewayd_hooks.testing.fake_gateway import FakeGateway
from gatewayd_proto_kserve.config import KserveConfig
from gatewayd_proto_kserve.messages import SERVICE, InferRequest, message_class
from gatewayd_proto_kserve.strategy import Kserve

ERROR = b'{"error": {"message": "it is so", "param": "prompt"}}'
OTHER = [("mine", 2)]
"""Options of a channel, which channels with other ones share no connection with."""


class Scripted(FakeGateway):
    """Answers with a status, an error, or not before it may.

    Attributes:
        status: of the next answers.
        fault: raised instead of an answer to POST.
        may_answer: whether answers begin.
        num_waiting: calls that have not ended.
    """

    def __init__(self) -> None:
        super().__init__()
        self.status = 200
        self.fault: Exception | None = None
        self.may_answer = asyncio.Event()
        self.num_waiting = 0

    @asynccontextmanager
    async def call(
        self, method: str, target: str, **options: Any
    ) -> AsyncGenerator[CallAnswer, None]:
        self.num_waiting += 1
        try:
            await self.may_answer.wait()
            if self.fault is not None and method == "POST":
                raise self.fault

            async def read() -> AsyncIterator[bytes]:
                yield b'{"name": "gatewayd"}' if self.status == 200 else ERROR

            yield CallAnswer(self.status, {"retry-after": "3"}, read())
        finally:
            self.num_waiting -= 1


@pytest.fixture
async def gateway() -> Scripted:
    return Scripted()


@asynccontextmanager
async def served(
    gateway: FakeGateway, caplog: pytest.LogCaptureFixture, **settings: Any
) -> AsyncIterator[str]:
    """The address of a port."""
    caplog.set_level("INFO")
    strategy = Kserve(KserveConfig(port=0, **settings))
    strategy.open(GatewayResources("nano", 1, ""))
    strategy.routes(gateway)
    await strategy.start()
    try:
        (address,) = re.findall(r"listens on (\S+)", caplog.text)
        yield address
    finally:
        await strategy.stop(0)


def live(channel: Any) -> Any:
    make = message_class("ServerLiveResponse").FromString
    request = message_class("ServerLiveRequest")()
    return channel.unary_unary(
        f"/{SERVICE}/ServerLive",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=make,
    )(request, timeout=20)


def asked() -> Any:
    request = InferRequest(model_name="nano", id="a")
    tensor = request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(b"hi")
    return request


def infer(channel: Any, request: Any) -> Any:
    return channel.unary_unary(
        f"/{SERVICE}/ModelInfer",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=message_class("ModelInferResponse").FromString,
    )(request, timeout=20)


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


async def refused(call: Any) -> Any:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def test_requests_over_the_bound_are_refused(
    gateway: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    # By another connection: requests of one wait for each other.
    async with (
        served(gateway, caplog, concurrency=2) as address,
        grpc.aio.insecure_channel(address) as one,
        grpc.aio.insecure_channel(address, OTHER) as other,
    ):
        first = [asyncio.ensure_future(live(one)) for _ in range(2)]
        await until(lambda: gateway.num_waiting == 2)
        error = await refused(live(other))
        gateway.may_answer.set()
        assert [answer.live for answer in await asyncio.gather(*first)] == [True, True]
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_connections_over_the_bound_are_closed(
    gateway: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    gateway.may_answer.set()
    async with (
        served(gateway, caplog, connections=1) as address,
        grpc.aio.insecure_channel(address) as one,
        grpc.aio.insecure_channel(address, OTHER) as other,
    ):
        assert (await live(one)).live
        error = await refused(live(other))
    assert error.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "INVALID_ARGUMENT"),
        (401, "UNAUTHENTICATED"),
        (403, "PERMISSION_DENIED"),
        (404, "NOT_FOUND"),
        (408, "DEADLINE_EXCEEDED"),
        (413, "RESOURCE_EXHAUSTED"),
        (429, "RESOURCE_EXHAUSTED"),
        (500, "INTERNAL"),
        (503, "UNAVAILABLE"),
        (504, "DEADLINE_EXCEEDED"),
    ],
)
async def test_a_status_has_its_code(
    gateway: Scripted, caplog: pytest.LogCaptureFixture, status: int, code: str
) -> None:
    gateway.status = status
    gateway.may_answer.set()
    async with (
        served(gateway, caplog) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        error = await refused(infer(channel, asked()))
    assert (error.code().name, error.details()) == (code, "it is so")
    assert dict(error.trailing_metadata())["retry-after"] == "3"


async def test_the_text_of_a_mistake_is_for_the_log_alone(
    gateway: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    gateway.fault = ValueError("the secret")
    gateway.may_answer.set()
    async with (
        served(gateway, caplog) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        error = await refused(infer(channel, asked()))
        stream = channel.stream_stream(
            f"/{SERVICE}/ModelStreamInfer",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=message_class("ModelStreamInferResponse").FromString,
        )([asked(), asked()], timeout=20)
        answers = [answer async for answer in stream]
    assert error.code() is grpc.StatusCode.INTERNAL
    assert [answer.infer_response.id for answer in answers] == ["a", "a"]
    for told in (error.details(), *[answer.error_message for answer in answers]):
        assert told.startswith("an internal error")
    assert caplog.text.count("the secret") == 3


async def test_a_stream_without_a_key_ends_at_once(
    gateway: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    """It would take one of the places, although it asks for nothing."""
    gateway.status = 401
    gateway.may_answer.set()
    async with (
        served(gateway, caplog) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        stream = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")(timeout=20)
        error = await refused(stream.read())
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_client_that_leaves_ends_its_call(
    gateway: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(gateway, caplog) as address:
        async with grpc.aio.insecure_channel(address) as channel:
            call = asyncio.ensure_future(infer(channel, asked()))
            await until(lambda: gateway.num_waiting == 1)
            call.cancel()
            await until(lambda: gateway.num_waiting == 0)
        async with grpc.aio.insecure_channel(address) as channel:
            call = asyncio.ensure_future(infer(channel, asked()))
            await until(lambda: gateway.num_waiting == 1)
        await until(lambda: gateway.num_waiting == 0)
        await asyncio.gather(call, return_exceptions=True)
