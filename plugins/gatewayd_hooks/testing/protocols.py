"""Conformance tests of protocols, for any formats."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewayd_hooks.protocols import (
    HttpRequest,
    HttpResponse,
    ProtocolStrategy,
    RequestRefusal,
    Route,
    ServesItself,
)
from gatewayd_hooks.requests.checking import check
from gatewayd_hooks.requests.tables import RequestTable
from gatewayd_hooks.resources import GatewayResources
from gatewayd_hooks.testing.fake_gateway import FakeGateway, request
from gatewayd_hooks.testing.samples.campaign import campaign

_STOP_SECONDS = 5
_STATUSES = (400, 401, 403, 404, 405, 408, 413, 415, 429, 500, 503)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
_WORDS = ("model", "messages", "prompt", "stream", "input", "tools", "options", "max_tokens")
_BODIES = st.binary(max_size=40) | st.dictionaries(
    st.sampled_from(_WORDS) | st.text(max_size=8),
    _JSON | st.sampled_from(["nano", True, [{"role": "user", "content": "hi"}]]),
    max_size=6,
).map(msgspec.json.encode)

_LEAST = {"model": "nano"}
_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 3, 10**30, 1.5, "", "x", [], [7], ["x"], [{}], {}),
    {"asks": "for something"},
)


class ProtocolConformance:
    """Subclass it and build your protocol in ``make``."""

    def make(self) -> ProtocolStrategy:
        """Build the protocol; the tests open and close it."""
        raise NotImplementedError("return your protocol, built and not opened")

    def conversations(self) -> list[HttpRequest]:
        """Return requests answered by ``Gateway.chat`` or ``generate``, for the model ``nano``.

        Streams and whole answers; the more, the more is tested.
        """
        return []

    def _conversations(self) -> list[HttpRequest]:
        return self.conversations() or pytest.skip("conversations() returns no requests")

    @contextmanager
    def opened(self) -> Iterator[ProtocolStrategy]:
        """Yield an opened protocol."""
        protocol = self.make()
        try:
            protocol.open(GatewayResources(model="nano", num_replicas=1))
            yield protocol
        finally:
            protocol.close()

    def test_closing_it_unopened_is_harmless(self) -> None:
        self.make().close()

    def test_its_routes_are_complete_and_unique(self) -> None:
        with self.opened() as protocol:
            routes = protocol.routes(FakeGateway())
        assert routes, "it has no route"
        assert len({(route.method, route.path) for route in routes}) == len(routes)
        for route in routes:
            assert route.method in ("GET", "POST", "DELETE", "HEAD")
            assert route.path.startswith("/")
            assert route.summary
            assert callable(route.handler)

    def test_a_port_of_its_own_opens_and_closes(self) -> None:
        """Of protocols with the methods of ``ServesItself``; also where ``start`` was cancelled."""

        async def serve(protocol: ServesItself, *, starts: bool) -> None:
            if starts:
                await protocol.start()
            async with asyncio.timeout(_STOP_SECONDS):
                await protocol.stop(0)

        for starts in (True, False):
            with self.opened() as protocol:
                if isinstance(protocol, ServesItself):
                    protocol.routes(FakeGateway())
                    asyncio.run(serve(protocol, starts=starts))

    def test_every_error_has_the_protocols_format(self) -> None:
        """Including those of the gateway: client and server errors stay distinct."""
        with self.opened() as protocol:
            for status in _STATUSES:
                error = protocol.error(
                    RequestRefusal(status, "a sentence", param="messages"), "req_1"
                )
                late = protocol.late_error(RequestRefusal(status, "a sentence"), "req_1")
                assert isinstance(error.body, bytes)
                assert 400 <= error.status < 600
                assert (error.status < 500) == (status < 500)
                assert b"a sentence" in error.body
                assert isinstance(late, bytes)
                assert b"a sentence" in late

    @campaign
    @given(body=_BODIES)
    def test_any_body_is_answered_or_refused(self, body: bytes) -> None:
        """Any other exception of a handler than ``RequestRefusal`` would be a status of 500."""
        with self.opened() as protocol:
            gateway = FakeGateway()
            for route in protocol.routes(gateway):
                _ = asyncio.run(_outcome(route, request(route.method, route.path, body)))

    def test_its_tables_declare_refused_fields(self) -> None:
        """Compared by the field that they name."""
        for expected, response in self._variants():
            if isinstance(expected, RequestRefusal):
                assert isinstance(response, RequestRefusal), (
                    f"it accepts what its table refuses: {expected}"
                )
                assert (response.status // 100, response.param) == (4, expected.param)

    def test_its_tables_declare_ignored_fields(self) -> None:
        """Fields without effect are listed, including those that no table knows."""
        for expected, response in self._variants():
            if not isinstance(expected, RequestRefusal) and isinstance(response, HttpResponse):
                assert set(expected) <= {*response.ignored}, (
                    "it does not list fields that it ignores"
                )

    def _variants(self) -> list[tuple[list[str] | RequestRefusal, HttpResponse | RequestRefusal]]:
        """Return results of tables and handlers, with many values for each field of each table."""
        # Each value is put into a request that is otherwise valid, if there is a sample of its
        # route.
        sample = [one for one in self.conversations() if one.body.startswith(b"{")]
        own = {(one.method, one.path): one.json() for one in sample}

        async def outcomes() -> list[
            tuple[list[str] | RequestRefusal, HttpResponse | RequestRefusal]
        ]:
            return [
                (_expected(table, body), await _response(route, body))
                for route in protocol.routes(FakeGateway())
                if (table := route.request) is not None
                for name in ("unknown_to_all", *sorted(table.known))
                for value in _VALUES
                for body in [{**own.get((route.method, route.path), _LEAST), name: value}]
            ]

        with self.opened() as protocol:
            return asyncio.run(outcomes())

    def test_conversations_are_answered(self) -> None:
        for sample in self._conversations():
            with self.opened() as protocol:
                gateway = FakeGateway()
                status, body = asyncio.run(_outcome(_find(protocol, gateway, sample), sample))
                assert (status, bool(body)) == (200, True)
                assert gateway.bodies, "it did not ask the gateway"
                assert gateway.bodies[-1].get("model") in gateway.models

    def test_a_conversation_with_a_model_that_was_never_loaded_is_answered(self) -> None:
        """The gateway loads it: a protocol that refuses would keep it from being loaded."""
        for sample in self._conversations():
            with self.opened() as protocol:
                gateway = FakeGateway()
                gateway.model = None
                status, _ = asyncio.run(_outcome(_find(protocol, gateway, sample), sample))
                assert status == 200

    def test_refusals_of_the_gateway_reach_the_client(self) -> None:
        for sample in self._conversations():
            with self.opened() as protocol:
                gateway = FakeGateway()
                gateway.refusal = RequestRefusal(503, "no room", code="overloaded", retry_after=2)
                status, _ = asyncio.run(_outcome(_find(protocol, gateway, sample), sample))
                assert status == 503

    def test_a_failed_answer_is_not_reported_as_complete(self) -> None:
        for sample in self._conversations():
            with self.opened() as protocol:
                gateway = FakeGateway()
                gateway.deltas = gateway.deltas[:1]
                gateway.failure = RequestRefusal(
                    500, "lost", code="engine_restarted", type="server_error"
                )
                status, _ = asyncio.run(_outcome(_find(protocol, gateway, sample), sample))
                assert status == 500

    def test_a_client_disconnect_closes_the_iterator(self) -> None:
        for sample in self._conversations():
            with self.opened() as protocol:
                asyncio.run(_leave(_find(protocol, FakeGateway(), sample), sample))


def _find(protocol: ProtocolStrategy, gateway: FakeGateway, sample: HttpRequest) -> Route:
    """Return the route of a request whose path has no parameters."""
    for route in protocol.routes(gateway):
        if (route.method, route.path) == (sample.method, sample.path):
            return route
    raise LookupError(f"no route is {sample.method} {sample.path}")


async def _outcome(route: Route, sample: HttpRequest) -> tuple[int, bytes]:
    """Call a handler and read its response to the end; return the status and the body."""
    found = b""
    try:
        response = await route.handler(sample)
        assert isinstance(response, HttpResponse)
        if isinstance(response.body, bytes):
            return response.status, response.body
        async for piece in response.body:
            assert isinstance(piece, bytes)
            found += piece
    except RequestRefusal as error:
        refusal = error
    else:
        return response.status, found
    assert 400 <= refusal.status < 600
    assert refusal.message
    return refusal.status, found


def _expected(table: type[RequestTable], body: dict[str, Any]) -> list[str] | RequestRefusal:
    try:
        return check(table, body)[1]
    except RequestRefusal as refusal:
        return refusal


async def _response(route: Route, body: dict[str, Any]) -> HttpResponse | RequestRefusal:
    """Return a handler's immediate response."""
    try:
        response = await route.handler(request(route.method, route.path, msgspec.json.encode(body)))
        close = getattr(response.body, "aclose", None)
        if close is not None:
            await close()
    except RequestRefusal as refusal:
        return refusal
    return response


async def _leave(route: Route, sample: HttpRequest) -> None:
    """Read one piece and disconnect."""
    response = await route.handler(sample)
    if isinstance(response.body, bytes):
        return
    await anext(response.body)
    close = getattr(response.body, "aclose", None)
    assert close is not None, "the pieces must come from an asynchronous generator"
    await close()
    with pytest.raises(StopAsyncIteration):
        await anext(response.body)
