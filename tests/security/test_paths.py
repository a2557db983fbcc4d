"""Paths: alternative spellings, and names that are paths, on a real port.

Of the classes of CVE-2026-48746 (a check that reads another path than the router), CVE-2023-6021
and CVE-2024-37032 (names that are joined to a folder), CVE-2026-22778 (errors that tell addresses).
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import FakeFleet, says
from tests.gatewayd.gateway import CHAT, running
from tests.gatewayd.store_fixtures import opened

KEY = "an operator's key"
ENCODED = (
    "/v1/%2e%2e/livez",
    "/livez/%2e%2e/v1/models",
    "/livez/../v1/models",
    "/livez%2f..%2fv1%2fmodels",
    "/livez%00",
    "/livez%0d%0ax:y",
    "/livez;/../v1/models",
    "/livez/v1/models",
    "/%6civez/../v1/models",
    "//livez",
    "/livez//",
    "/./livez",
    "/v1//models",
    "//v1/models",
    "/V1/MODELS",
    "/Livez",
    "/v1/models%3f/livez",
    "/v1/models?/livez",
    "/v1/models#/livez",
    "/v1\\models",
    "/%76%31/models",
    "/v1/mod%65ls",
    "/%2fv1/models",
    "http://localhost/v1/models",
    "http://localhost/livez/../v1/models",
    "/v1/models/%2e%2e/%2e%2e/livez",
    "*",
)
TRAVERSALS = (
    "..%2f..%2f..%2fetc%2fpasswd",
    "%2e%2e%2fgatewayd.db",
    "..%5c..%5cgatewayd.db",
    "%2fetc%2fpasswd",
    "gatewayd.db",
    "file-" + "0" * 32 + "%2f..%2f..%2fgatewayd.db",
    "file-" + "0" * 32 + "%00.txt",
    "file-" + "%2e" * 8,
    "~root",
    "$(id)",
    "a" * 4000,
)
PLACES = (
    "GET /v1/files/{}",
    "GET /v1/files/{}/content",
    "DELETE /v1/files/{}",
    "GET /v1/batches/{}",
    "POST /v1/batches/{}/cancel",
    "GET /v1/responses/{}",
    "DELETE /v1/responses/{}",
    "GET /v1/responses/{}/input_items",
    "GET /v1/models/{}",
)


async def sent(port: int, method: str, path: str, key: str = "") -> tuple[int, str]:
    """Status and body of what no client has made sense of first."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
    head += f"x-api-key: {key}\r\n" if key else ""
    writer.write(f"{head}content-length: 0\r\n\r\n".encode("latin-1"))
    answer = (await reader.read()).decode("utf-8", "replace")
    writer.close()
    return int(answer.split()[1]), answer.partition("\r\n\r\n")[2]


async def test_no_way_to_write_a_path_comes_past_the_key(text: TextModel) -> None:
    async with running(text, FakeFleet(says([100])), api_key=KEY) as gateway:
        for path in ENCODED:
            for method in ("GET", "POST", "DELETE"):
                status, said = await sent(gateway.port, method, path)
                assert status in (400, 401), (method, path, status, said)
                assert "nano" not in said, path
        assert (await sent(gateway.port, "GET", "/v1/models", KEY))[0] == 200


async def test_an_id_is_looked_up_and_never_a_path(text: TextModel, tmp_path: Path) -> None:
    """CVE-2023-6021, CVE-2024-37032, CVE-2026-7302 and siblings."""
    state = tmp_path / "state"
    state.mkdir()
    with opened(state) as durable:
        before = {file: file.stat().st_size for file in state.rglob("*") if file.suffix == ".db"}
        async with running(text, FakeFleet(says([100])), api_key=KEY, durable=durable) as gateway:
            for place in PLACES:
                for name in TRAVERSALS:
                    method, path = place.format(name).split()
                    status, said = await sent(gateway.port, method, path, KEY)
                    assert status in (400, 404, 405), (method, path, status)
                    assert "root:" not in said
                    assert "SQLite" not in said
                    assert str(tmp_path) not in said
            for name in ("../../etc/passwd", "file-" + "0" * 32 + "/../../gatewayd.db"):
                body = {"input_file_id": name, "endpoint": "/v1/completions"}
                answer = await gateway.http.post(
                    "/v1/batches",
                    json={**body, "completion_window": "24h"},
                    headers={"x-api-key": KEY},
                )
                assert answer.status_code in (400, 404), answer.text
        assert before
        assert all(file.exists() for file in before)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_no_error_tells_an_address_or_a_path(text: TextModel, is_stream: bool) -> None:
    """CVE-2026-22778, CVE-2026-54236, CVE-2025-23319."""

    class Fleet(FakeFleet):
        def submit(self, request: Any, sinks: Any) -> Any:
            raise RuntimeError(f"{object()!r} of /var/lib/gatewayd/secret")

    async with running(text, Fleet(says([100]))) as gateway:
        for path, body in (
            ("/v1/chat/completions", CHAT),
            ("/v1/completions", {"model": "nano", "prompt": "x"}),
        ):
            answer = await gateway.http.post(path, json={**body, "stream": is_stream})
            assert answer.status_code == 500
            assert not re.search(r"0x[0-9a-f]{6,}|/var/lib|Traceback|RuntimeError", answer.text)
            assert set(answer.json()["error"]) >= {"message", "type", "code"}
