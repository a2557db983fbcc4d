"""Request bodies: bounded memory, in total and per tenant."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest

from gatewayd.errors import NotAdmitted, TenantNotAdmitted
from gatewayd.http.bodies import FREE_BYTES, BodyBudget
from gatewayd.http.services import RequestLimits
from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import FakeFleet, says
from tests.gatewayd.gateway import running, until
from tests.gatewayd.store_fixtures import copy_of
from tests.gatewayd.tenants.tenant_gateway import bearer, town

SIZE = 120_000


def test_a_tenant_has_as_much_as_is_left_and_all_of_it_comes_back() -> None:
    rng, most = random.Random(7), 1000
    bodies, held = BodyBudget(most), list[tuple[str, int]]()
    for _ in range(5000):
        if held and rng.random() < 0.5:
            tenant, size = held.pop(rng.randrange(len(held)))
            bodies.release(tenant, size)
            continue
        tenant, size = rng.choice("abcd"), rng.randint(1, 300)
        total = sum([size for _, size in held])
        mine = sum([size for one, size in held if one == tenant])
        if mine + size > most - total:
            with pytest.raises(TenantNotAdmitted if mine else NotAdmitted) as refusal:
                bodies.reserve(tenant, size)
            assert isinstance(refusal.value, TenantNotAdmitted) == (mine > 0)
        else:
            bodies.reserve(tenant, size)
            held.append((tenant, size))
        assert bodies.total == sum([size for _, size in held]) <= most
    for tenant, size in held:
        bodies.release(tenant, size)
    assert bodies.total == 0
    assert not bodies._capacity._held, "nothing is left of who has nothing"


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[BodyBudget]:
    """What the app that a test builds counts in."""
    made: list[BodyBudget] = []

    class Recorded(BodyBudget):
        def __init__(self, most: int) -> None:
            super().__init__(most)
            made.append(self)

    monkeypatch.setattr("gatewayd.http.app.BodyBudget", Recorded)
    return made


@pytest.fixture
def bodies(monkeypatch: pytest.MonkeyPatch) -> list[BodyBudget]:
    return recorded(monkeypatch)


async def begun(port: int, key: str, *, size: int | None = SIZE) -> asyncio.StreamWriter:
    """A request whose body comes in part: of a stated size, or in chunks."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    length = f"content-length: {size}" if size else "transfer-encoding: chunked"
    head = f"POST /tokenize HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {key}\r\n{length}\r\n"
    writer.write(f"{head}content-type: application/json\r\n\r\n".encode())
    some = b'{"prompt": "' + b"a" * SIZE
    writer.write(some[: size // 2] if size else b"%x\r\n%b\r\n" % (len(some), some))
    return writer


@pytest.mark.parametrize("size", [SIZE, None])
async def test_a_body_is_counted_while_it_comes_and_until_it_is_answered(
    text: TextModel, fresh_store: Path, tmp_path: Path, bodies: list[BodyBudget], size: int | None
) -> None:
    limits = RequestLimits(body_bytes=2 * SIZE, bodies_bytes=5 * SIZE)
    folder = copy_of(fresh_store, tmp_path / "store")
    async with town(text, folder, says([300]), limits=limits) as here:
        await here.tenant("a")
        await here.tenant("b")
        a, b = await here.key("a"), await here.key("b")
        body = json.dumps({"prompt": "a" * SIZE}).encode()
        assert len(body) > FREE_BYTES
        writers = [await begun(here.gateway.port, a, size=size) for _ in range(2)]
        await until(lambda: bodies[0].total >= 2 * SIZE)

        async def send(key: str, content: bytes) -> tuple[int, str | None, str]:
            headers = {**bearer(key), "content-type": "application/json"}
            answer = await here.gateway.http.post("/tokenize", content=content, headers=headers)
            error = answer.json().get("error", {})
            return answer.status_code, answer.headers.get("retry-after"), error.get("reason", "")

        assert await send(a, body) == (429, "1", "bodies")
        assert await send(b, body) == (200, None, "")
        assert (await send(a, b'{"prompt": "a"}'))[0] == 200, "small bodies need no room"
        for writer in writers:
            writer.close()
        await until(lambda: bodies[0].total == 0)
        assert await send(a, body) == (200, None, "")
        assert bodies[0].total == 0


async def test_who_has_no_key_has_no_bytes_here(text: TextModel, bodies: list[BodyBudget]) -> None:
    async with running(text, FakeFleet(says([300])), api_key="the right one") as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        size = 7 << 20
        head = "POST /tokenize HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}authorization: Bearer x\r\ncontent-length: {size}\r\n\r\n".encode())
        answer = await reader.read(1 << 16)
        assert answer.startswith(b"HTTP/1.1 401"), answer
        assert b"connection: close" in answer.lower()
        assert bodies[0].total == 0
        writer.close()
