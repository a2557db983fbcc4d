"""Protocol plugins: routes, errors, clients that come and go."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gatewayd.errors import EngineLost, NumericalError, QueueFull
from gatewayd.http.app import build_app
from gatewayd.http.protocols.mounted import PathOwners, overlap
from gatewayd.http.server.edge_limits import EdgeLimits
from gatewayd.http.services import RequestLimits, Services
from gatewayd.text.text_model import TextModel
from gatewayd_hooks.host.errors import PluginError
from gatewayd_hooks.protocols import Gateway as Given
from gatewayd_hooks.protocols import HttpRequest, HttpResponse, RequestRefusal, Route
from tests.gatewayd.fake_fleet import FakeFleet, fails, hangs, hangs_after, says
from tests.gatewayd.gateway import FakeControl, Gateway, running, until
from tests.gatewayd.http.protocols.plain_protocol import Plain
from tests.gatewayd.one_model import one_model

HELLO = "hello to all of you"


@asynccontextmanager
async def plainly(
    text: TextModel, fleet: FakeFleet, protocol: Plain | None = None, **options: object
) -> AsyncIterator[Gateway]:
    """A gateway with the protocol for tests."""
    protocols = [("plain", protocol or Plain())]
    async with running(text, fleet, protocols=protocols, **options) as gateway:  # type: ignore[arg-type]
        yield gateway


def saying(text: TextModel, words: str = HELLO) -> FakeFleet:
    return FakeFleet(says(text.tokenizer.encode(words), cached=16))


@pytest.mark.parametrize("path", ["/plain/say", "/plain/whole"])
async def test_an_answer_passes_through(text: TextModel, path: str) -> None:
    protocol = Plain()
    async with plainly(text, saying(text), protocol) as gateway:
        response = await gateway.http.post(path, content=b"hi")
        finished = await gateway.until_finished()
        metrics = (await gateway.http.get("/metrics")).text
    assert (response.status_code, response.text) == (200, HELLO)
    assert gateway.admitted[0].endpoint == path
    assert gateway.admitted[0].request_id == protocol.requests[0].request_id
    assert finished[0].outcome == "stop"
    assert f'endpoint="{path}",method="POST",status="200"}} 1.0' in metrics
    assert response.headers["x-request-id"] == protocol.requests[0].request_id
    assert "prefill" in response.headers["server-timing"]


async def test_what_is_ignored_is_named_by_both(text: TextModel) -> None:
    async with plainly(text, saying(text)) as gateway:
        response = await gateway.http.post("/plain/say", content=b"hi")
    assert response.headers["x-gateway-ignored-params"] == "mood, verbosity"


async def test_usage_is_there_before_and_after_the_end(text: TextModel) -> None:
    async with plainly(text, saying(text)) as gateway:
        response = await gateway.http.post("/plain/whole", content=b"hi")
    counted = [int(count) for count in response.headers["x-usage"].split(",")]
    assert counted[1:] == [len(text.tokenizer.encode(HELLO)), 16]
    assert counted[0] == gateway.admitted[0].prompt_tokens


async def test_what_is_refused_has_the_form_of_the_protocol(text: TextModel) -> None:
    fleet = FakeFleet()
    fleet.refusal = QueueFull("no room", retry_after=7)
    async with plainly(text, fleet) as gateway:
        response = await gateway.http.post("/plain/say", content=b"hi")
    assert response.status_code == 503
    assert response.text.startswith("sorry: no room (req_")
    assert response.headers["retry-after"] == "7"
    assert response.headers["content-type"] == "text/plain"
    assert response.headers["x-plain"] == "error"


async def test_a_failure_before_the_first_piece_has_its_own_status(text: TextModel) -> None:
    async with plainly(text, FakeFleet(fails(NumericalError("no numbers")))) as gateway:
        response = await gateway.http.post("/plain/say", content=b"hi")
    assert (response.status_code, response.text[:17]) == (500, "sorry: no numbers")


async def test_a_failure_in_a_stream_comes_after_what_came_before(text: TextModel) -> None:
    ids = text.tokenizer.encode(HELLO)
    async with plainly(text, FakeFleet(fails(EngineLost("lost it"), after=ids))) as gateway:
        response = await gateway.http.post("/plain/say", content=b"hi")
    assert response.status_code == 200
    assert response.text == HELLO + "[engine_restarted: lost it]"


async def test_a_protocol_that_raises_is_a_500_and_named_in_the_log(
    text: TextModel, caplog: pytest.LogCaptureFixture
) -> None:
    async with plainly(text, saying(text)) as gateway:
        early = await gateway.http.post("/plain/crash", content=b"hi")
        late = await gateway.http.post("/plain/crash_late", content=b"hi")
        finished = await gateway.until_finished()
    assert early.status_code == 500
    assert early.text.startswith("sorry: internal error of the gateway; see its log")
    assert late.text == "something[internal_error: internal error of the gateway; see its log]"
    assert [one.outcome for one in finished] == ["error"], "its client has not left"
    assert caplog.text.count("protocol plain failed") == 2
    assert "boom" in caplog.text


async def test_the_key_is_asked_for_in_the_protocols_words(text: TextModel) -> None:
    async with plainly(text, saying(text), api_key="a-secret") as gateway:
        without = await gateway.http.post("/plain/say", content=b"hi")
        wrong = await gateway.http.post("/plain/say", content=b"hi", headers={"x-api-key": "x"})
        for key in ({"x-api-key": "a-secret"}, {"authorization": "Bearer a-secret"}):
            right = await gateway.http.post("/plain/say", content=b"hi", headers=key)
            assert right.text == HELLO
    assert (without.status_code, wrong.status_code) == (401, 401)
    assert without.text.startswith("sorry: no API key")
    assert without.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    ("method", "path", "status", "form"),
    [
        ("GET", "/plain/say", 405, "text/plain"),
        ("POST", "/plain/nothing", 404, "text/plain"),
        ("POST", "/plain/a/shown/more", 404, "text/plain"),
        ("POST", "/elsewhere", 404, "application/json"),
        ("GET", "/v1/completions", 405, "application/json"),
    ],
)
async def test_routing_errors_have_the_form_of_whose_path_it_is(
    text: TextModel, method: str, path: str, status: int, form: str
) -> None:
    async with plainly(text, FakeFleet()) as gateway:
        response = await gateway.http.request(method, path)
    assert (response.status_code, response.headers["content-type"]) == (status, form)
    if status == 405:
        assert response.headers["allow"] == "POST"


async def test_a_body_that_is_too_large_is_refused_in_its_form(text: TextModel) -> None:
    limits = RequestLimits(body_bytes=1000)
    async with plainly(text, saying(text), limits=limits) as gateway:
        response = await gateway.http.post("/plain/say", content=b"x" * 1001)
    assert (response.status_code, response.text[:12]) == (413, "sorry: the b")
    assert response.headers["connection"] == "close"


async def test_a_page_must_say_that_it_sends_json(text: TextModel) -> None:
    """It may send a form without asking; curl sends one too, and is no page."""
    form = {"content-type": "application/x-www-form-urlencoded"}
    page = {"origin": "http://evil.example"}
    async with plainly(text, saying(text)) as gateway:
        curl = await gateway.http.post("/plain/say", content=b"hi", headers=form)
        evil = await gateway.http.post("/plain/say", content=b"hi", headers={**form, **page})
        asked = await gateway.http.post(
            "/plain/say", content=b"hi", headers={**page, "content-type": "application/json"}
        )
    assert (curl.status_code, evil.status_code, asked.status_code) == (200, 415, 200)


async def test_parameters_of_a_path_are_told(text: TextModel) -> None:
    async with plainly(text, FakeFleet()) as gateway:
        response = await gateway.http.get("/plain/some%20name/shown")
        metrics = (await gateway.http.get("/metrics")).text
        openapi = (await gateway.http.get("/openapi.json")).json()
        compat = (await gateway.http.get("/v1/gateway/compat")).json()
    assert response.text == "some name"
    shown_by_compat = [one for one in compat["routes"] if one["path"] == "/plain/{name}/shown"]
    assert [one["method"] for one in shown_by_compat] == ["GET"]
    assert 'endpoint="/plain/{name}/shown",method="GET",status="200"} 1.0' in metrics
    shown = openapi["paths"]["/plain/{name}/shown"]["get"]
    assert (shown["summary"], shown["parameters"][0]["name"]) == ("for tests", "name")
    assert "/plain/say" in openapi["paths"]


async def test_silence_is_broken_before_and_after_the_first_piece(text: TextModel) -> None:
    limits = RequestLimits(ping_seconds=0.1)
    async with plainly(text, FakeFleet(hangs), limits=limits) as gateway:
        async with gateway.http.stream("POST", "/plain/say", content=b"hi") as response:
            assert response.status_code == 200
            first = await anext(response.aiter_raw())
        gateway.fleet.script = hangs_after(text.tokenizer.encode(HELLO))
        async with gateway.http.stream("POST", "/plain/say", content=b"hi") as response:
            read = b""
            async for piece in response.aiter_raw():
                read += piece
                if read.endswith(b"<alive>" * 2):
                    break
    assert first == b"<alive>"
    assert read == HELLO.encode() + b"<alive>" * 2


def connect(gateway: Gateway, path: str) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", gateway.port))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nhi"
    sock.sendall(head.encode())
    sock.setblocking(False)
    return sock


@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_client_that_leaves_ends_the_iterator_and_the_request(
    text: TextModel, has_begun: bool
) -> None:
    protocol = Plain()
    fleet = FakeFleet(hangs_after([100, 101]) if has_begun else hangs)
    async with plainly(text, fleet, protocol) as gateway:
        sock = connect(gateway, "/plain/say")
        await until(lambda: fleet.jobs)
        if has_begun:
            assert await asyncio.get_running_loop().sock_recv(sock, 100)
        sock.close()
        await until(lambda: fleet.jobs[0].gone.is_set())
        finished = await gateway.until_finished()
        status = 200 if has_begun else 499
        await gateway.until_shown(f'endpoint="/plain/say",method="POST",status="{status}"}} 1.0')
    assert protocol.ended == ["say"]
    assert [one.outcome for one in finished] == ["abort"]


async def test_a_handler_that_waits_for_something_else_is_interrupted_too(
    text: TextModel,
) -> None:
    protocol = Plain()
    async with plainly(text, FakeFleet(), protocol) as gateway:
        sock = connect(gateway, "/plain/hang")
        await until(lambda: protocol.begun == ["hang"])
        sock.close()
        await until(lambda: protocol.ended == ["hang"])
        await gateway.until_shown('endpoint="/plain/hang",method="POST",status="499"} 1.0')


async def test_a_slow_reader_is_not_read_ahead_for_and_cut_at_last(text: TextModel) -> None:
    protocol = Plain()
    edge = EdgeLimits(stall_seconds=1.0)
    async with plainly(text, FakeFleet(), protocol, edge=edge) as gateway:
        sock = connect(gateway, "/plain/many")
        await until(lambda: protocol.pulled)
        early = 0
        while early != protocol.pulled:  # until the buffers are full
            early = protocol.pulled
            await asyncio.sleep(0.1)
        await until(lambda: protocol.ended == ["many"])
        sock.close()
    assert early == protocol.pulled
    assert early < 200  # of ten thousand: what the buffers take


async def test_what_comes_while_a_client_does_not_read_is_one_piece(text: TextModel) -> None:
    """Nobody counts tokens: each piece is all that has come."""
    protocol, pieces = Plain(), []
    ids = text.tokenizer.encode(HELLO * 10)
    async with (
        plainly(text, FakeFleet(says(ids, step=7)), protocol) as gateway,
        gateway.http.stream("POST", "/plain/say", content=b"hi") as response,
    ):
        pieces = [piece async for piece in response.aiter_raw()]
    assert b"".join(pieces).decode() == HELLO * 10
    assert len(pieces) <= len(ids) // 7 + 2


def services(text: TextModel, **protocols: Plain) -> Services:
    fleet = FakeFleet()
    control = FakeControl()
    return one_model(
        fleet,
        text,
        version="9",
        max_model_len=9,
        control=control,
        protocols=tuple(protocols.items()),
    )


@pytest.mark.parametrize(
    "path", ["/v1/completions", "/v1/models/{name}", "/v1/models", "/{any}/completions", "/livez"]
)
def test_a_path_of_the_gateways_own_is_refused(text: TextModel, path: str) -> None:
    with pytest.raises(
        PluginError, match=r"^protocol\.mine cannot serve .* belongs to the gateway"
    ):
        build_app(services(text, mine=Plain(path)))


def test_a_path_of_two_protocols_is_refused_with_both_names(text: TextModel) -> None:
    class Other(Plain):
        def routes(self, gateway: Given) -> list[Route]:
            return [Route("GET", "/plain/{any}", self.show, "for tests")]

    with pytest.raises(PluginError) as caught:
        build_app(services(text, mine=Plain(), yours=Other()))
    assert str(caught.value) == (
        "protocol.yours cannot serve /plain/{any}: /plain/say belongs to protocol.mine"
    )


async def test_two_protocols_share_a_path_by_its_methods(text: TextModel) -> None:
    class Reads(Plain):
        def routes(self, gateway: Given) -> list[Route]:
            return [Route("GET", "/plain/say", self.told, "for tests")]

        async def told(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse(b"told")

        def error(self, refusal: RequestRefusal, request_id: str) -> HttpResponse:
            return HttpResponse(b"theirs", status=refusal.status)

    served: Any = [("mine", Plain()), ("yours", Reads())]
    async with running(text, FakeFleet(), protocols=served) as gateway:
        read = await gateway.http.get("/plain/say")
        posted = await gateway.http.post("/plain/say", content=b"\xff")
        wrong = await gateway.http.delete("/plain/say")
        page = (await gateway.http.get("/metrics")).text
    assert read.text == "told"
    assert posted.status_code == 500
    assert posted.content.startswith(b"sorry")
    assert (wrong.status_code, wrong.headers["x-plain"]) == (405, "error")
    assert all(method in wrong.text for method in ("GET", "HEAD", "POST"))
    assert 'endpoint="/plain/say",method="GET",status="200"' in page
    with pytest.raises(PluginError, match="/plain/say belongs to protocol"):
        build_app(services(text, mine=Reads(), yours=Reads()))


@pytest.mark.parametrize(
    ("route", "reason"),
    [
        (Route("PUT", "/x", Plain().say, ""), "PUT /x: a method is one of GET, POST, DELETE, HEAD"),
        (Route("GET", "x", Plain().say, ""), "GET x: "),
        (Route("GET", "/{x:none}", Plain().say, ""), "GET /{x:none}: "),
        (Route("POST", "/plain/say", Plain().say, ""), "it has POST /plain/say twice"),
        (Route("GET", "/x", None, ""), "GET /x has no handler"),  # type: ignore[arg-type]
    ],
)
def test_routes_that_cannot_be_served_are_refused(
    text: TextModel, route: Route, reason: str
) -> None:
    class Broken(Plain):
        def routes(self, gateway: Given) -> list[Route]:
            return [*super().routes(gateway), route]

    with pytest.raises(PluginError) as caught:
        build_app(services(text, mine=Broken()))
    assert f"protocol.mine cannot be loaded: {reason}" in str(caught.value)


def test_routes_that_raise_are_refused(text: TextModel) -> None:
    class Broken(Plain):
        def routes(self, gateway: Given) -> list[Route]:
            raise KeyError("nothing")

    with pytest.raises(PluginError, match=r"protocol\.mine cannot be loaded: routes raised KeyErr"):
        build_app(services(text, mine=Broken()))


@pytest.mark.parametrize(
    ("one", "other", "do"),
    [
        ("/a", "/a", True),
        ("/a", "/a/b", False),
        ("/a/{x}", "/a/b", True),
        ("/a/{x}", "/b/{x}", False),
        ("/a/{x:path}", "/a/b/c/d", True),
        ("/{x}/b", "/a/{y}", True),
        ("/", "/a", False),
        ("/a/", "/a", False),
    ],
)
def test_paths_overlap_where_one_request_could_mean_both(one: str, other: str, do: bool) -> None:
    assert overlap(one, other) is overlap(other, one) is do


def test_a_folder_belongs_to_whose_routes_are_in_it_alone() -> None:
    owners, mine, yours = PathOwners(), object(), object()
    for path, owner in [
        ("/v1/models", None),
        ("/v1/messages", mine),
        ("/v1/messages/extra", yours),
        ("/api/{name}", mine),
        ("/", yours),
    ]:
        owners.add(path, owner)  # type: ignore[arg-type]
    found = {
        path: owners.of(path)
        for path in ["/v1/messages", "/v1/messages/x", "/api", "/api/a/b", "/v1/x", "/", "/x", ""]
    }
    assert found == {
        "/v1/messages": mine,
        "/v1/messages/x": None,
        "/api": mine,
        "/api/a/b": mine,
        "/v1/x": None,
        "/": yours,
        "/x": None,
        "": None,
    }


async def test_an_error_that_cannot_be_told_is_told_as_openai_does(
    text: TextModel, caplog: pytest.LogCaptureFixture
) -> None:
    class Mute(Plain):
        def error(self, refusal: object, request_id: str) -> None:  # type: ignore[override]
            raise KeyError("error")

    async with plainly(text, FakeFleet(), Mute()) as gateway:
        response = await gateway.http.post("/plain/nothing")
    assert response.json()["error"]["code"] == "not_found"
    assert "protocol plain failed to format an error" in caplog.text
