"""Charged usage: all computed tokens are charged on a real engine, on every route and ending.

The oracle is the engine's own count of tokens: prompts that nobody has sent before and answers of
one token are computed once, so what was charged, less what was cached, is what was computed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import re
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gatewayd.admin.client import call
from gatewayd.store.tables import budgets, reservations, usage
from tests.daemon.conftest import Running, nano_daemon
from tests.daemon.test_tenants import act, rows
from tests.gatewayd.store_fixtures import copy_of
from tests.gatewayd.tenants.tenant_gateway import bearer

_OF_TWO = ("/v1/completions",)
"""Routes whose bodies ask for two answers."""
LEAVES_SECONDS, STAYS_SECONDS = 0.025, 60.0
_numbers = itertools.count()


def words(count: int) -> str:
    """A text that nobody has sent before, of about so many tokens."""
    rng = random.Random(next(_numbers))
    return " ".join(str(rng.randint(100, 999)) for _ in range(count // 2))


def ids(count: int) -> list[int]:
    """A prompt that nobody has sent before, of so many tokens."""
    rng = random.Random(next(_numbers))
    return [rng.randint(300, 4000) for _ in range(count)]


def chat() -> list[dict[str, str]]:
    return [{"role": "user", "content": words(1000)}]


BODIES: dict[str, Callable[[], dict[str, Any]]] = {
    "/v1/completions": lambda: {"prompt": ids(1500), "max_tokens": 1, "n": 2},
    "/v1/chat/completions": lambda: {"messages": chat(), "max_tokens": 1, "stream": True},
    "/v1/embeddings": lambda: {"input": ids(1500)},
    "/rerank": lambda: {"query": words(700), "documents": [words(700), words(20)]},
    "/score": lambda: {"text_1": words(700), "text_2": words(700)},
    "/v1/decisions": lambda: {
        "input": words(700),
        "questions": [{"type": "predicate", "instructions": "It is short."}],
    },
    "/v1/responses": lambda: {"input": words(1000), "max_output_tokens": 1},
    "/v1/messages": lambda: {"messages": chat(), "max_tokens": 1},
    "/api/generate": lambda: {"prompt": words(1000), "options": {"num_predict": 1}},
    "/api/chat": lambda: {"messages": chat(), "options": {"num_predict": 1}},
    "/api/embed": lambda: {"input": words(1000)},
}


@dataclass
class Books:
    """What a daemon's engine has done, and what its tenants are charged for."""

    daemon: Running
    socket: str
    store: Path

    def ask(self, method: str, path: str, body: object = None) -> Any:
        return call(self.socket, method, path, body)

    def tenant(self, name: str, **terms: object) -> dict[str, str]:
        """Headers of a new one's key."""
        self.ask("POST", "/admin/tenants", {"tenant": name, "terms": terms})
        return bearer(self.ask("POST", "/admin/keys", {"tenant": name})["secret"])

    def rows(self, tenant: str | None = None) -> list[Any]:
        return [row for row in rows(self.store, usage) if tenant in (None, row.tenant)]

    def metric(self, name: str) -> float:
        page = httpx.get(f"{self.daemon.url}/metrics", headers=self.scraper, timeout=60).text
        return sum(map(float, re.findall(rf"^{name}(?:{{.*}})? (\S+)$", page, re.M)))

    def open_books(self) -> None:
        body = {"tenant": "default", "scopes": ["metrics:read"]}
        self.scraper = bearer(self.ask("POST", "/admin/keys", body)["secret"])
        self.ask("PATCH", "/admin/tenants/default", {"weight": 2})

    async def check(self) -> None:
        """All that the engine has done is on somebody's account."""
        async with asyncio.timeout(30):
            while True:
                busy = await asyncio.to_thread(self.metric, "gatewayd_engine_busy_seconds_total")
                found = self.rows()
                if abs(sum(row.engine_seconds for row in found) - busy) < 1e-6:
                    break
                await asyncio.sleep(0.05)
        computed = self.metric("gatewayd_engine_computed_tokens_total")
        charged = sum(row.prompt_tokens - row.cached_tokens for row in found)
        # With ``n`` 2 the second answer computes the prompt's last token again, if it begins.
        second = sum(row.completion_tokens > 0 for row in found if row.endpoint in _OF_TWO)
        assert charged <= computed <= charged + second
        assert [row for row in found if row.engine_seconds > 0 and not row.prompt_tokens] == []
        assert self.metric("gatewayd_uncharged_engine_seconds_total") == 0


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory, fresh_store: Path) -> Iterator[Books]:
    """Of one daemon for all: what each test leaves must be charged to a tenant by the next."""
    folder = tmp_path_factory.mktemp("charges")
    store, socket = copy_of(fresh_store, folder / "store"), str(folder / "admin.sock")
    settings = {
        "GATEWAYD_STORE__PATH": str(store),
        "GATEWAYD_ADMIN__SOCKET": socket,
        "GATEWAYD_ENGINE__THREADS": "1",
    }
    with nano_daemon(folder, **settings) as daemon:
        found = Books(daemon, socket, store)
        found.open_books()
        yield found


@contextlib.asynccontextmanager
async def client(books: Books) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=books.daemon.url, timeout=30) as http:
        yield http


async def left(
    http: httpx.AsyncClient, path: str, headers: dict[str, str], seconds: float
) -> int | None:
    """The status of a request that is left so soon; None if there was none by then."""
    body = {"model": "nano", **BODIES[path]()}
    try:
        answer = await http.post(path, json=body, headers=headers, timeout=seconds)
    except httpx.TimeoutException:
        return None
    assert answer.status_code in (200, 429), answer.text
    return answer.status_code


async def test_leaving_within_the_first_step_is_charged_and_holds_every_limit(books: Books) -> None:
    headers = books.tenant("a", tokens_per_minute=2000, most_tokens=200_000, concurrency=1)
    found: Counter[int | None] = Counter()
    async with client(books) as http:
        began, seconds = time.monotonic(), LEAVES_SECONDS
        for _ in range(60):
            # On a slow machine none begins so soon; then nobody is charged, and nobody refused.
            seconds *= 1 if found[429] else 1.06
            found[await left(http, "/v1/completions", headers, seconds)] += 1
        assert found.keys() <= {None, 429}
        assert found[429] > 0, found
        await books.check()
        charged = [row for row in books.rows("a") if row.engine_seconds > 0]
        # A minute has tokens for one and, a little later, for the rest of another.
        refilled = 2000 / 60 * (time.monotonic() - began)
        assert 1 <= len(charged) <= 4 + refilled / 512
        assert all(row.prompt_tokens >= 512 for row in charged), "a step has as many"
        used = sum(row.prompt_tokens + row.completion_tokens for row in charged)
        (budget,) = [row for row in rows(books.store, budgets) if row.tenant == "a"]
        assert (budget.used_tokens, budget.reserved_tokens) == (used, 0)
        told = (await http.get("/v1/gateway/usage", headers=headers)).json()["limits"]
        assert told["concurrency"]["remaining"] == 1
        assert told["tokens_per_minute"]["remaining"] <= 2000 - used + refilled + 400


async def test_every_route_is_charged_for_what_its_clients_leave(books: Books) -> None:
    async with client(books) as http:
        for path in BODIES:
            headers = books.tenant("t" + path.replace("/", "-"))
            waits = (*(LEAVES_SECONDS * times for times in (1, 4, 16)), STAYS_SECONDS)
            await asyncio.gather(*(left(http, path, headers, seconds) for seconds in waits))
        await books.check()
        for path in BODIES:
            found = books.rows("t" + path.replace("/", "-"))
            assert sum(row.engine_seconds for row in found) > 0, path
            assert sum(row.prompt_tokens for row in found) > 0, path
        gone = [row for row in books.rows() if row.outcome == "abort" and row.engine_seconds > 0]
        assert len(gone) > len(BODIES) // 3, "some are to be left in the middle"


async def killed(
    start_daemon: Any, store: Path, bodies: list[dict[str, Any]], seconds: float
) -> list[Any]:
    """What the next start settles of requests in whose middle a daemon was killed."""
    terms = {"tenant": "a", "terms": {"most_tokens": 100_000}}
    act(store, "/admin/tenants", terms)
    headers = bearer(act(store, "/admin/keys", {"tenant": "a"})["secret"])
    daemon = await asyncio.to_thread(
        start_daemon, env={"FAKE_STEP_MS": "50"}, **{"store.path": store}
    )

    async def send(http: httpx.AsyncClient, body: dict[str, Any]) -> None:
        body = {"model": "nano", "ignore_eos": True, **body}
        with contextlib.suppress(httpx.HTTPError):
            await http.post(f"{daemon.url}/v1/completions", json=body, headers=headers)

    async with httpx.AsyncClient(timeout=60) as http:
        sent = [asyncio.create_task(send(http, body)) for body in bodies]
        async with asyncio.timeout(30):
            while len(await asyncio.to_thread(rows, store, reservations)) < len(bodies):
                await asyncio.sleep(0.02)
        await asyncio.sleep(seconds)
        daemon.process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(daemon.process.wait)
        await asyncio.gather(*sent)
    daemon = await asyncio.to_thread(start_daemon, **{"store.path": store})
    assert daemon.stop() == 0
    return sorted(rows(store, usage), key=lambda row: row.prompt_tokens)


async def test_a_killed_daemons_answers_are_charged_streamed_or_not(
    start_daemon: Any, fresh_store: Path, tmp_path: Path
) -> None:
    store = copy_of(fresh_store, tmp_path / "store")
    bodies = [
        {"prompt": [300] * 10, "max_tokens": 500, "stream": True},
        {"prompt": [300] * 11, "max_tokens": 500},
        {"prompt": [300] * 12, "max_tokens": 500, "n": 2, "stop": ["no such text"]},
        {"prompt": [300] * 13, "max_tokens": 500, "n": 2, "best_of": 2, "logprobs": 1},
    ]
    found = await killed(start_daemon, store, bodies, 1.2)
    assert [(row.outcome, row.prompt_tokens) for row in found] == [
        ("lost", length) for length in (10, 11, 12, 13)
    ]
    streamed, *others = [row.completion_tokens for row in found]
    assert streamed > 10
    for row, count, choices in zip(found[1:], others, (1, 2, 2), strict=True):
        assert abs(count - choices * streamed) <= 4 * choices, (row.prompt_tokens, count, streamed)
