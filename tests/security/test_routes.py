"""Routes: a closed list in both apps, everything else is denied.

Of the class of CVE-2026-48746 (a key that guards some prefixes), CVE-2025-10164 and CVE-2026-42203
(routes that take weights or templates), CVE-2026-44556 (a router that forgot the check of its
neighbour), CVE-2026-27482 (a blocklist that forgot DELETE), CVE-2026-48817 (odd methods).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.routing import Route, Router

from gatewayd.config.tables import Config
from gatewayd.daemon.options import DaemonOptions
from gatewayd.daemon.run import Daemon
from gatewayd.errors import PermissionDenied
from gatewayd.http.rights import Rights
from gatewayd.http.server.authentication import PUBLIC
from gatewayd.tenants.principal import BATCHES, EVERYTHING, FILES, INFER, METRICS, MODELS, Principal
from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import FakeFleet, says
from tests.gatewayd.gateway import running
from tests.gatewayd.tenants.tenant_gateway import bearer, town

KEY = "an operator's key"
RIGHTS = {
    "POST /v1/chat/completions": INFER,
    "POST /v1/chat/completions/render": INFER,
    "POST /v1/completions": INFER,
    "POST /v1/completions/render": INFER,
    "POST /v1/embeddings": INFER,
    "POST /v1/decisions": INFER,
    "POST /v1/rerank": INFER,
    "POST /v2/rerank": INFER,
    "POST /rerank": INFER,
    "POST /v1/score": INFER,
    "POST /score": INFER,
    "POST /tokenize": INFER,
    "POST /v1/tokenize": INFER,
    "POST /detokenize": INFER,
    "POST /v1/detokenize": INFER,
    "POST /v1/watermark/detect": INFER,
    "POST /v1/responses": INFER,
    "POST /v1/responses/input_tokens": INFER,
    "GET /v1/responses/{response_id}": INFER,
    "DELETE /v1/responses/{response_id}": INFER,
    "POST /v1/responses/{response_id}/cancel": INFER,
    "GET /v1/responses/{response_id}/input_items": INFER,
    "POST /v1/messages": INFER,
    "POST /v1/messages/count_tokens": INFER,
    "POST /api/chat": INFER,
    "POST /api/generate": INFER,
    "POST /api/embed": INFER,
    "POST /api/embeddings": INFER,
    "GET /api/tags": INFER,
    "POST /api/pull": EVERYTHING,
    "DELETE /api/delete": EVERYTHING,
    "POST /api/show": INFER,
    "GET /api/ps": INFER,
    "GET /api/version": INFER,
    "GET /": INFER,
    "GET /v1/files": FILES,
    "POST /v1/files": FILES,
    "GET /v1/files/{file_id}": FILES,
    "DELETE /v1/files/{file_id}": FILES,
    "GET /v1/files/{file_id}/content": FILES,
    "GET /v1/batches": BATCHES,
    "POST /v1/batches": BATCHES,
    "GET /v1/batches/{batch_id}": BATCHES,
    "POST /v1/batches/{batch_id}/cancel": BATCHES,
    "GET /v1/models": MODELS,
    "GET /v1/models/{model:path}": MODELS,
    "GET /version": MODELS,
    "GET /v1/gateway/compat": MODELS,
    "GET /v1/gateway/usage": MODELS,
    "GET /openapi.json": MODELS,
    "GET /metrics": METRICS,
    "GET /livez": METRICS,
    "GET /readyz": METRICS,
    "GET /health": METRICS,
}
"""Every route of the public app, and the right that a tenant's key needs there."""
ADMIN = {
    "GET /admin/plugins",
    "GET /admin/plugins/{kind}/{name}",
    "GET /admin/strategies",
    "PUT /admin/strategies/{kind}",
    "PATCH /admin/limits",
    "PUT /admin/pins",
    "GET /admin/requests",
    "GET /admin/requests/{id:path}",
    "GET /admin/tenants",
    "POST /admin/tenants",
    "PATCH /admin/tenants/{tenant}",
    "DELETE /admin/tenants/{tenant}",
    "GET /admin/keys",
    "POST /admin/keys",
    "POST /admin/keys/{key}/rotate",
    "DELETE /admin/keys/{key}",
    "GET /admin/prices",
    "PUT /admin/prices",
    "DELETE /admin/prices/{model:path}",
    "GET /admin/usage",
    "GET /admin/audit",
    "POST /admin/audit/accept",
    "GET /admin/snapshot",
    "GET /admin/stream",
    "DELETE /admin/prefixes",
    "DELETE /admin/prefixes/{engine:int}/{page:int}",
    "GET /admin/prefixes",
    "GET /admin/slo",
    "PATCH /admin/slo",
    "POST /admin/drain",
    "DELETE /admin/models/{name:path}",
    "GET /admin/models",
    "PUT /admin/models/{name:path}",
    "POST /admin/models/{name:path}/load",
    "POST /admin/models/{name:path}/unload",
    "DELETE /admin/versions/{name:path}",
    "GET /admin/versions",
    "POST /admin/versions/{name:path}/promote",
    "PUT /admin/versions/{name:path}",
    "POST /admin/pause",
    "POST /admin/requests/{id:path}/bump",
    "POST /admin/requests/{id:path}/cancel",
    "POST /admin/requests/{id:path}/hold",
    "POST /admin/requests/{id:path}/release",
    "POST /admin/resume",
    "PUT /admin/prefixes/{engine:int}/{page:int}/pin",
}
"""Every route of the admin app, which only its socket's owner and root reach."""
NANO: Any = SimpleNamespace(names=("nano",))
"""A catalogue of one model."""
NO_METHODS = ["CONNECT", "BREW", "__init__", "get"]
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", *NO_METHODS]


class Built:
    """The routers of a daemon that is put together as always, and never run."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.public: list[Route] = []
        self.admin: list[Route] = []

        def recording(found: list[Route]) -> type[Router]:
            class Recorded(Router):
                def __init__(self, routes: list[Any], **more: Any) -> None:
                    super().__init__(routes, **more)
                    assert all(type(one) is Route for one in routes)  # no mount, no websocket
                    found.extend(routes)

            return Recorded

        patch.setattr("gatewayd.http.app.Router", recording(self.public))
        patch.setattr("gatewayd.admin.app.Router", recording(self.admin))
        tables: dict[str, Any] = {
            "server": {"port": 0},
            "store": {"path": str(folder)},
            "admin": {"socket": str(folder / "admin.sock")},
        }
        config = Config(**tables)
        self.daemon = Daemon(config, DaemonOptions(reload=lambda: config))


@pytest.fixture
def built(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Built]:
    made = Built(folder, monkeypatch)
    yield made
    parts = made.daemon.parts
    parts.durable.close()
    assert parts.admin is not None
    for listener in [*parts.listening.listeners, parts.admin.server.listener]:
        listener.close()


def named(routes: list[Route]) -> set[str]:
    assert all(route.methods for route in routes)  # none would be all of them
    return {
        f"{method} {route.path}"
        for route in routes
        for method in route.methods or ()
        if not (method == "HEAD" and "GET" in (route.methods or ()))
    }


def test_both_apps_have_these_routes_and_no_others(built: Built) -> None:
    """Who adds a route enters it here, with its right, and says so in the change."""
    assert sorted(named(built.public) ^ set(RIGHTS)) == []
    assert sorted(named(built.admin) ^ ADMIN) == []
    # No method in two places, and none of the admin's routes on the port.
    assert len({route.path for route in built.public}) == len(built.public)
    assert not any("admin" in path for path in RIGHTS)


def test_a_key_needs_the_right_of_the_list_and_no_other(built: Built) -> None:
    rights = Rights(built.public, NANO)
    scopes = (INFER, FILES, BATCHES, MODELS, METRICS)
    for route in built.public:
        path = route.path.replace("{model:path}", "a/b").replace("{", "").replace("}", "")
        needed = {RIGHTS[one] for one in named([route])}
        for scope in scopes:
            principal = Principal(tenant="a", scopes=frozenset((scope,)))
            try:
                rights.check(principal, path)
                is_let_in = True
            except PermissionDenied:
                is_let_in = False
            assert is_let_in == ({scope} == needed), (path, scope)


def test_a_route_that_nobody_gave_a_right_is_for_no_key() -> None:
    async def new(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError

    rights = Rights([Route("/v1/new", new, methods=["POST"]), Route("/v1/new/{x}", new)], NANO)
    everything = frozenset((INFER, FILES, BATCHES, MODELS, METRICS))
    for path in ("/v1/new", "/v1/new/1"):
        with pytest.raises(PermissionDenied, match="operator only"):
            rights.check(Principal(tenant="a", scopes=everything), path)


@pytest.mark.parametrize("scope", [INFER, FILES, BATCHES, MODELS, METRICS])
async def test_a_slash_behind_a_path_asks_for_the_same_right(
    text: TextModel, folder: Path, scope: str
) -> None:
    """``/metrics/`` was served to who may not read ``/metrics``; so were files and responses."""
    async with town(text, folder, says([300])) as here:
        await here.tenant("a")
        key = await here.key("a", scopes=[scope])
        for one, right in RIGHTS.items():
            method, path = one.split()
            if path == "/" or path.startswith(("/api/", "/v1/messages")):
                continue  # a protocol's, which is not served here
            path = path.replace("{model:path}", "nano").replace("{", "").replace("}", "")
            if path in PUBLIC:
                path += "?verbose=1"
            plain, slashed = [
                (await here.gateway.http.request(method, each, headers=bearer(key))).status_code
                for each in (path, path.replace("?", "/?") if "?" in path else f"{path}/")
            ]
            assert plain == slashed, (one, plain, slashed)
            assert (plain == 403) == (right != scope), (one, plain)


async def said(port: int, method: str, path: str) -> int:
    """The status of a request that no client has made sense of first."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    line = await reader.readline()
    writer.close()
    return int(line.split()[1])


async def test_without_a_key_no_method_of_no_path_is_answered(text: TextModel) -> None:
    """Decided on the path as it was sent, before any route is looked up."""
    paths = {name.split()[1].replace("{", "").replace("}", "") for name in RIGHTS}
    paths |= {"/nowhere", "/admin/keys", "/v1/../livez", "/livez/..", "//livez", "/docs", "/LIVEZ"}
    async with running(text, FakeFleet(says([100])), api_key=KEY) as gateway:
        for path in sorted(paths - PUBLIC):
            for method in METHODS if path in ("/v1/models", "/nowhere") else ("GET", "DELETE"):
                status = await said(gateway.port, method, path)
                # What the parser takes for no method never was a request.
                assert status == 401 or (status == 400 and method in NO_METHODS), (method, path)
        for path in PUBLIC:
            assert await said(gateway.port, "GET", path) == 200
            assert await said(gateway.port, "DELETE", path) == 405


async def test_a_method_that_is_not_listed_is_405_with_every_key(text: TextModel) -> None:
    listed: dict[str, set[str]] = {}
    for name in RIGHTS:
        method, path = name.split()
        listed.setdefault(path, set()).add(method)
    ours = {"/v1/chat/completions", "/v1/models", "/metrics", "/tokenize", "/livez", "/version"}
    async with running(text, FakeFleet(says([100])), api_key=KEY) as gateway:
        for path in ours:
            for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
                if method not in listed[path]:
                    answer = await gateway.http.request(method, path, headers={"x-api-key": KEY})
                    assert answer.status_code == 405, (method, path)
                    assert answer.json()["error"]["code"] == "method_not_allowed"


async def test_the_admin_app_answers_nothing_that_is_not_listed(built: Built) -> None:
    desk = built.daemon.parts.admin
    assert desk is not None
    app: Any = desk.server.config.app

    async def status(method: str, path: str) -> int:
        said: list[Any] = []

        async def send(message: Any) -> None:
            said.append(message)

        async def receive() -> Any:
            return {"type": "http.disconnect"}

        scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": []}
        await app({**scope, "extensions": {}}, receive, send)
        return int(said[0]["status"])

    fixed = {name for name in ADMIN if "{" not in name}
    for name in fixed:
        method, path = name.split()
        for other in METHODS:
            if f"{other} {path}" not in ADMIN and other != "HEAD":
                assert await status(other, path) == 405, (other, path)
        assert await status(method, path + "/") in (404, 405)
    for path in ("/", "/admin", "/admin/", "/v1/models", "/admin/exec", "/livez"):
        assert await status("GET", path) == 404
