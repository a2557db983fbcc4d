"""Authentication: keys and hosts; all routes but health checks are closed."""

from __future__ import annotations

import asyncio

import pytest
from starlette.routing import Route

from gatewayd.http.app import build_router
from gatewayd.http.protocols.mounted import Protocols
from gatewayd.http.schema.openapi import OPERATIONS
from gatewayd.http.server.authentication import PUBLIC
from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import FakeFleet, says
from tests.gatewayd.gateway import CHAT, running
from tests.gatewayd.one_model import one_model

KEY = "gw_test_0123456789"


def routes(text: TextModel) -> list[tuple[str, str]]:
    fleet = FakeFleet()
    services = one_model(fleet, text, max_model_len=8)
    found = build_router(services, Protocols(services)).routes
    return [
        (method, route.path.replace("{model:path}", "nano"))
        for route in found
        if isinstance(route, Route)
        for method in sorted(route.methods or ())
    ]


async def test_every_route_but_the_health_checks_asks_for_the_key(text: TextModel) -> None:
    async with running(text, FakeFleet(says([100])), api_key=KEY) as gateway:
        walked = routes(text)
        assert len({path for _, path in walked}) == len({one.path for one in OPERATIONS})
        for method, path in walked:
            for headers in ({}, {"authorization": "Bearer no"}, {"x-api-key": KEY + "x"}):
                answer = await gateway.http.request(method, path, headers=headers)
                is_refused = answer.status_code in (401, 429)  # many are braked
                assert is_refused == (path not in PUBLIC), (method, path)
            opened = await gateway.http.request(method, path, headers={"x-api-key": KEY})
            assert opened.status_code != 401
        for path in ("/", "/nowhere", "/livez/", "//livez", "/v1", "/livez;x", "/livez/../metrics"):
            assert (await gateway.http.get(path)).status_code == 401, path
        assert (await gateway.http.get("/%6civez")).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {KEY}"},
        {"authorization": f"bearer {KEY}"},
        {"x-api-key": KEY},
    ],
)
async def test_the_key_opens_in_either_header(text: TextModel, headers: dict[str, str]) -> None:
    async with running(text, FakeFleet(says([100])), api_key=KEY) as gateway:
        answer = await gateway.http.post("/v1/chat/completions", json=CHAT, headers=headers)
        refused = await gateway.http.post("/v1/chat/completions", json=CHAT)
    assert answer.status_code == 200
    assert refused.status_code == 401
    assert refused.json()["error"]["code"] == "missing_api_key"
    assert refused.headers["www-authenticate"] == "Bearer"
    assert KEY not in refused.text


async def test_details_of_readiness_need_the_key(text: TextModel) -> None:
    async with running(text, FakeFleet(), api_key=KEY) as gateway:
        plain = await gateway.http.get("/readyz")
        refused = await gateway.http.get("/readyz?verbose=1")
        shown = await gateway.http.get("/readyz?verbose=1", headers={"x-api-key": KEY})
    assert plain.json() == {"status": "ready"}
    assert refused.status_code == 401
    assert shown.json()["replicas"][0]["pid"] == 4321


HOSTILE = [
    b"x/y?",
    b"x y",
    b"a@b",
    b"x#y",
    b"x\\y",
    b"[::1",
    b"x:port",
    b"x:123456",
    b"h\xc3\xb6st",
    b"<script>",
    b"a" * 256,
    b"",
    b"x, y",
]


@pytest.mark.parametrize("host", HOSTILE)
async def test_a_host_that_is_none_is_refused_on_every_route(text: TextModel, host: bytes) -> None:
    async with running(text, FakeFleet()) as gateway:
        for path in ("/livez", "/v1/models", "/metrics"):
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(f"GET {path} HTTP/1.1\r\nhost: ".encode() + host + b"\r\n\r\n")
            status = await reader.readline()
            writer.close()
            assert b" 400 " in status


@pytest.mark.parametrize("host", ["localhost", "a.b-c.d:8000", "127.0.0.1:1", "[::1]:80"])
async def test_a_real_host_is_served(text: TextModel, host: str) -> None:
    async with running(text, FakeFleet()) as gateway:
        assert (await gateway.http.get("/livez", headers={"host": host})).status_code == 200


async def test_a_request_has_one_host(text: TextModel) -> None:
    async with running(text, FakeFleet()) as gateway:
        for hosts in ("", "host: a\r\nhost: b\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(f"GET /livez HTTP/1.1\r\n{hosts}\r\n".encode())
            assert b" 400 " in await reader.readline()
            writer.close()


LOCAL = ["localhost", "LocalHost.:80", "a.localhost", "gpu-box:8000", "127.0.0.1", "10.1.2.3:1"]
LOCAL += ["[::1]:80", "[::ffff:1.2.3.4]"]
FOREIGN = ["evil.example", "127.0.0.1.evil.example:8000", "localhost.evil.example", "1.2.3.4.5"]
FOREIGN += ["evil.example.", "notlocalhost.x", "127.0.0.1.a", "a.localhost.x", "1.2.3"]


@pytest.mark.parametrize("host", LOCAL)
async def test_a_local_host_is_served_without_a_key(text: TextModel, host: str) -> None:
    async with running(text, FakeFleet(), only_local_hosts=True) as gateway:
        assert (await gateway.http.get("/v1/models", headers={"host": host})).status_code == 200


@pytest.mark.parametrize("host", FOREIGN)
async def test_a_foreign_host_sees_the_health_checks_alone(text: TextModel, host: str) -> None:
    async with running(text, FakeFleet(), only_local_hosts=True) as gateway:
        for method, path in [*routes(text), ("GET", "/nowhere")]:
            answer = await gateway.http.request(method, path, headers={"host": host})
            assert (answer.status_code == 403) == (path not in PUBLIC), (method, path)
            if answer.status_code == 403 and method != "HEAD":
                assert answer.json()["error"]["code"] == "host_not_allowed"
                assert host in answer.json()["error"]["message"]
        for path in PUBLIC:
            details = await gateway.http.get(f"{path}?verbose=1", headers={"host": host})
            assert details.status_code == 403
            assert "pid" not in details.text
    async with running(text, FakeFleet()) as gateway:
        assert (await gateway.http.get("/v1/models", headers={"host": host})).status_code == 200


async def test_a_trailer_is_no_header(text: TextModel) -> None:
    sent = b"GET /v1/models HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n"
    async with running(text, FakeFleet(), api_key=KEY) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(sent + b"x-api-key: " + KEY.encode() + b"\r\n\r\n")
        assert b" 401 " in await reader.readline()
        writer.close()
