"""Tenant isolation: one tenant neither evicts nor observes another's cache on a real engine."""

from __future__ import annotations

import asyncio
import contextlib
import re
from pathlib import Path
from typing import Any

import httpx

from gatewayd.admin.client import call
from tests.daemon.conftest import NANO_DAEMON
from tests.gatewayd.tenants.tenant_gateway import bearer

PROMPT = [300 + i * 7 % 3001 for i in range(160)]
PAGES = 96


async def complete(
    http: httpx.AsyncClient, key: str, prompt: list[int], most: int = 2, **more: Any
) -> Any:
    body = {"model": "nano", "prompt": prompt, "max_tokens": most, "ignore_eos": True, **more}
    answer = await http.post("/v1/completions", json=body, headers=bearer(key))
    return answer.status_code, answer.json()


async def cached(http: httpx.AsyncClient, key: str, prompt: list[int], **more: Any) -> int:
    """Tokens of a prompt that are found in the prefix cache."""
    status, answer = await complete(http, key, prompt, **more)
    assert status == 200, answer
    found: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


async def nobody_finds_what_others_computed(http: httpx.AsyncClient, keys: dict[str, str]) -> None:
    """Whoever is first, whole or in part, also where both name the same salt."""
    orders: list[tuple[str, str, list[int], dict[str, str]]] = [
        ("a", "b", PROMPT, {}),
        ("b", "a", PROMPT[::-1], {}),
    ]
    orders.append(("a", "b", PROMPT, {"cache_salt": "ours"}))
    for first, second, prompt, more in orders:
        assert await cached(http, keys[first], prompt, **more) == 0
        assert await cached(http, keys[first], [*prompt[:100], 5], **more) >= 96
        assert await cached(http, keys[second], prompt, **more) == 0
        assert await cached(http, keys[second], [*prompt[:100], 6], **more) >= 96


async def leave_and_stop(http: httpx.AsyncClient, key: str) -> None:
    """Some that the engine still computes when the gateway has done with them."""
    body = {"model": "nano", "prompt": [5] * 50, "max_tokens": 400, "ignore_eos": True}
    for _ in range(2):
        with contextlib.suppress(httpx.TimeoutException):
            await http.post("/v1/completions", json=body, headers=bearer(key), timeout=0.3)
    stops = body | {"stop": ["e", "a", "o", " "], "n": 2, "temperature": 1.0, "seed": 1}
    answer = await http.post("/v1/completions", json=stops, headers=bearer(key))
    assert answer.json()["choices"][0]["finish_reason"] == "stop"


async def all_adds_up(http: httpx.AsyncClient, ask: Any) -> None:
    """What tenants took of the engine is what it was busy."""
    body = {"tenant": "a", "scopes": ["metrics:read"]}
    key = (await asyncio.to_thread(ask, "POST", "/admin/keys", body))["secret"]
    async with asyncio.timeout(30):
        while True:
            used = await asyncio.to_thread(ask, "GET", "/admin/usage")
            metrics = (await http.get("/metrics", headers=bearer(key))).text
            (busy,) = re.findall(r"^gatewayd_engine_busy_seconds_total{.*} (\S+)$", metrics, re.M)
            if abs(sum(row["engine_seconds"] for row in used) - float(busy)) < 1e-6:
                break
            await asyncio.sleep(0.1)
    assert float(busy) > 0.1
    assert sum(row["requests"] for row in used) >= 30


async def test_a_floor_keeps_what_is_cached_and_a_ceiling_bounds_a_flood(
    start_daemon: Any, tmp_path: Path
) -> None:
    socket = str(tmp_path / "admin.sock")
    env = {
        "GATEWAYD_ADMIN__SOCKET": socket,
        "GATEWAYD_ENGINE__KV_PAGES": str(PAGES),
        "GATEWAYD_QUEUE__MAX_WAITING_REQUESTS": "64",
    }
    daemon = await asyncio.to_thread(start_daemon, command=NANO_DAEMON, env=env)

    def ask(method: str, route: str, body: object = None) -> Any:
        return call(socket, method, route, body)

    keys = {}
    for name, terms in (("a", {"kv_floor": "12.5%"}), ("b", {"kv_ceiling": "64"})):
        await asyncio.to_thread(
            ask, "POST", "/admin/tenants", {"tenant": name, "terms": terms | {"weight": 2}}
        )
        keys[name] = (await asyncio.to_thread(ask, "POST", "/admin/keys", {"tenant": name}))[
            "secret"
        ]
    async with httpx.AsyncClient(base_url=daemon.url, timeout=60) as http:

        async def flood() -> None:
            prompts = [[500 + i, *range(1000, 1160)] for i in range(11)]
            found = await asyncio.gather(*(complete(http, keys["b"], p, 8) for p in prompts))
            assert [status for status, _ in found] == [200] * 11

        await nobody_finds_what_others_computed(http, keys)
        assert await cached(http, keys["a"], PROMPT) >= 144
        await flood()
        assert await cached(http, keys["a"], PROMPT) >= 144, "12 pages are kept for it"
        await asyncio.to_thread(ask, "PATCH", "/admin/tenants/b", {"kv_ceiling": "8"})
        status, refused = await complete(http, keys["b"], [5] * 100, 29)
        assert (status, refused["error"]["code"]) == (400, "kv_quota_exceeded")
        assert "129 tokens take 9 pages" in refused["error"]["message"]
        assert (await complete(http, keys["b"], [5] * 100, 28))[0] == 200
        changes: dict[str, dict[str, None]] = {"a": {"kv_floor": None}, "b": {"kv_ceiling": None}}
        for name, gone in changes.items():
            await asyncio.to_thread(ask, "PATCH", f"/admin/tenants/{name}", gone)
        await flood()
        assert await cached(http, keys["a"], PROMPT) == 0, "nothing is kept any more"
        await leave_and_stop(http, keys["b"])
        await all_adds_up(http, ask)
    assert daemon.stop() == 0
