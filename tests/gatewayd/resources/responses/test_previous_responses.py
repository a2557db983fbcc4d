"""Chains of stored responses: reads equal a model that has them all."""

from __future__ import annotations

import asyncio
import json
import random
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from gatewayd.errors import ContextLengthExceeded, InvalidRequest, NotFound
from gatewayd.http.openai.chat import prepare_chat
from gatewayd.resources.responses import records, run
from gatewayd.resources.responses.event_log import ResponseLog, ResponseLogReader
from gatewayd.resources.responses.previous_responses import PreviousResponses, chain
from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import FakeFleet, hangs, says
from tests.gatewayd.gateway import Gateway, running, until
from tests.gatewayd.responses_gateway import ANSWER, ask
from tests.gatewayd.store_fixtures import opened
from tests.gatewayd.tenants.tenant_gateway import Town

KIB = 1 << 10


def item(name: str, size: int = 1) -> dict[str, Any]:
    return {"id": name, "type": "message", "role": "user", "content": [{"text": "x" * size}]}


def row(number: int, output: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    return {
        "id": f"resp_{number}",
        "created_at": number,
        "status": "completed",
        "previous_response_id": f"resp_{number - 1}" if number else None,
        "output": output,
        **fields,
    }


def text_size(items: list[dict[str, Any]]) -> int:
    return len(json.dumps(items))


def names(found: PreviousResponses) -> list[str]:
    return [one["id"] for one in found.items]


async def test_of_a_chain_the_newest_whole_responses_are_read_that_fit(folder: Path) -> None:
    rng = random.Random(7)

    def attempt(connection: Connection, seed: int) -> None:
        tenant, sizes, ids = f"t{seed}", list[int](), list[list[str]]()
        for number in range(rng.randrange(1, 12)):
            given = [item(f"{number}g{at}", rng.randrange(400)) for at in range(rng.randrange(4))]
            said = [item(f"{number}s", rng.randrange(900))]
            body = row(number, said, instructions="y" * rng.randrange(100))
            body["id"] = f"{tenant}_{number}"
            body["previous_response_id"] = f"{tenant}_{number - 1}" if number else None
            records.add(connection, tenant, body, given)
            sizes.append(text_size(given) + text_size(said) + len("null"))
            ids.append([one["id"] for one in [*given, *said]])
        limit = rng.randrange(200, 6000)
        fits = 0
        while fits < len(sizes) and sum(sizes[len(sizes) - fits - 1 :]) <= limit:
            fits += 1
        last = f"{tenant}_{len(sizes) - 1}"
        found = chain(connection, tenant, last, most_bytes=limit, is_cut=True)
        assert names(found) == [one for part in ids[len(ids) - fits :] for one in part]
        assert found.num_bytes <= limit
        if fits == len(sizes):
            whole = chain(connection, tenant, last, most_bytes=limit, is_cut=False)
            assert names(whole) == names(found)
        else:
            with pytest.raises(ContextLengthExceeded, match=f"more than {limit} bytes") as caught:
                chain(connection, tenant, last, most_bytes=limit, is_cut=False)
            assert caught.value.param == "previous_response_id"
        with pytest.raises(NotFound):
            chain(connection, "nobody", last, most_bytes=limit, is_cut=True)

    with opened(folder) as durable:
        for seed in range(25):
            await durable.database.write(partial(attempt, seed=seed))


@pytest.mark.parametrize("where", ["input", "instructions"])
async def test_what_is_too_much_is_not_read(folder: Path, where: str) -> None:
    """Of 20 MB behind a name of 30 bytes."""
    large = "z" * (1000 * KIB)

    def add(connection: Connection) -> None:
        for number in range(20):
            given = [item(f"{number}", len(large))] if where == "input" else [item(f"{number}")]
            told = {"instructions": large} if where == "instructions" else {}
            records.add(connection, "default", row(number, [], **told), given)

    def read(connection: Connection, *, is_cut: bool) -> int:
        tracemalloc.start()
        try:
            found = chain(connection, "default", "resp_19", most_bytes=250 * KIB, is_cut=is_cut)
            assert len(found.items) == (0 if where == "input" else 3)
        except ContextLengthExceeded:
            pass
        finally:
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        return peak

    with opened(folder) as durable:
        await durable.database.write(add)
        for is_cut in (True, False):
            peak = await durable.database.read(partial(read, is_cut=is_cut))
            assert peak < (200 * KIB if where == "input" else 3000 * KIB)


@asynccontextmanager
async def small(
    text: TextModel, folder: Path, script: Any = None, num_bytes: int = 64 * KIB, **responses: int
) -> AsyncIterator[Town]:
    """A gateway whose requests may have so many bytes behind them."""
    with opened(folder, server={"body_bytes": num_bytes}, responses=responses) as durable:
        fleet = FakeFleet(script or says(ANSWER))
        async with running(text, fleet, durable=durable) as gateway:
            yield Town(gateway, durable)


async def test_a_chain_that_is_too_long_is_refused_and_named(text: TextModel, folder: Path) -> None:
    async with small(text, folder, num_bytes=16 * KIB) as here:
        gateway = here.gateway
        previous = None
        for number in range(4):
            last = await ask(
                gateway,
                input=[user(f"{number} " + "word " * 200)],
                metadata={str(at): "y" * 512 for at in range(16)},
                truncation="auto",
                previous_response_id=previous,
            )
            previous = last.id
        # What else there is in a response is no conversation.
        body = {"model": "nano", "input": "x", "previous_response_id": previous}
        answer = await gateway.http.post("/v1/responses", json=body)
        assert answer.status_code == 200, answer.text
    async with small(text, folder, num_bytes=4 * KIB) as here:
        gateway = here.gateway
        for path in ("/v1/responses", "/v1/responses/input_tokens"):
            answer = await gateway.http.post(path, json=body)
            assert answer.status_code == 400, answer.text
            error = answer.json()["error"]
            assert (error["code"], error["param"]) == (
                "context_length_exceeded",
                "previous_response_id",
            )
            assert "more than 4096 bytes" in error["message"]
            answer = await gateway.http.post(path, json={**body, "truncation": "auto"})
            assert answer.status_code == 200, answer.text


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def developer(content: str) -> dict[str, Any]:
    return {"role": "developer", "content": content}


async def test_what_was_truncated_away_stays_out_of_the_chain(
    text: TextModel, folder: Path
) -> None:
    """Each goes on behind what the one before was told, which is also all that is read for it."""
    rng = random.Random(3)
    async with small(text, folder) as here:
        gateway = here.gateway
        previous, prompts, sizes = None, list[str](), list[int]()
        for number in range(24):
            given = [user(f"<{number}> " + "word " * rng.choice([3, 100, 300]))]
            if number in (0, 9):
                given.insert(0, developer(f"rule {number}"))
            if number == 15:  # its own beginning does not fit either
                given[:0] = [user(f"<{number}a> " + "word " * 1900)]
            made = await ask(
                gateway,
                input=given,
                truncation="auto",
                previous_response_id=previous,
                background=number % 5 == 4,
                max_output_tokens=4,
            )
            await over(gateway, made.id)
            previous = made.id
            job = gateway.fleet.jobs[-1]
            prompts.append(text.tokenizer.decode(job.request.prompt))
            found = await here.durable.database.read(
                partial(
                    chain,
                    tenant="default",
                    response_id=made.id,
                    most_bytes=1 << 20,
                    is_cut=False,
                )
            )
            sizes.append(len(found.parts))
            said = [
                "".join(part["text"] for part in one["content"])
                for one in found.items
                if one["role"] != "assistant"
            ]
            # All that it was told, and nothing else, is what the next one goes on behind.
            assert [one for one in said if one not in prompts[-1]] == []
            assert prompts[-1].count("<") - prompts[-1].count("<|") == sum(
                one.startswith("<") for one in said
            )
            assert [one for one in said if one.startswith("rule")] == [
                f"rule {at}" for at in (0, 9) if at <= number
            ]
    assert max(sizes) < 24
    assert sizes[15] == 1


async def over(gateway: Gateway, response_id: str) -> None:
    while (await gateway.openai.responses.retrieve(response_id)).status == "in_progress":
        await asyncio.sleep(0.005)


async def test_items_are_found_without_reading_what_is_beside_them(folder: Path) -> None:
    hexes = [f"{number:032x}" for number in range(30)]

    def add(connection: Connection) -> None:
        for number, name in enumerate(hexes):
            said = [item(f"msg_{name}", 10), item(f"fc_{name}", 300 * KIB)]
            told = f"msg_{hexes[3]}" + "z" * (200 * KIB)
            body = {**row(number, said, instructions=told), "id": f"resp_{name}"}
            records.add(connection, "default", body, [])

    def find(connection: Connection, item_id: str, most_bytes: int) -> int:
        tracemalloc.start()
        try:
            found = records.items(connection, "default", {item_id: "p"}, most_bytes=most_bytes)
            assert found[item_id].item["id"] == item_id
        finally:
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        return peak

    with opened(folder) as durable:
        read = durable.database.read
        await durable.database.write(add)
        # The name of the third is in the instructions of all.
        found = await read(
            lambda c: records.items(c, "default", {f"msg_{hexes[3]}": "p"}, most_bytes=1 << 30)
        )
        assert found[f"msg_{hexes[3]}"].num_bytes < 200
        assert await read(lambda c: find(c, f"msg_{hexes[20]}", 1 << 30)) < 2500 * KIB
        for wanted, error in ((f"msg_{hexes[29][:-1]}f", NotFound), ("msg_1", NotFound)):
            with pytest.raises(error):
                await read(partial(find, item_id=wanted, most_bytes=1 << 30))
        with pytest.raises(InvalidRequest, match="more than 4000000 bytes"):
            await read(lambda c: find(c, f"rs_{hexes[20]}", 4_000_000))


async def test_an_item_that_is_named_often_counts_as_often(text: TextModel, folder: Path) -> None:
    async with small(text, folder, num_bytes=16 * KIB) as here:
        said = (await ask(here.gateway)).output[0].id
        for times, status in ((20, 200), (300, 400)):
            named = [{"type": "item_reference", "id": said}] * times
            body = {"model": "nano", "input": named, "truncation": "auto"}
            answer = await here.gateway.http.post("/v1/responses", json=body)
            assert answer.status_code == status, answer.text
    assert "the maximum is 16384: name fewer" in answer.json()["error"]["message"]


async def test_no_tenant_has_more_in_the_background_than_it_may(
    text: TextModel, folder: Path
) -> None:
    async with small(text, folder, hangs, background=3) as here:
        body = {"model": "nano", "input": "x", "background": True}
        # All at once: whoever is only about to begin counts, too.
        answers = await asyncio.gather(
            *[here.gateway.http.post("/v1/responses", json=body) for _ in range(10)]
        )
        assert Counter(one.status_code for one in answers) == {200: 3, 429: 7}
        refused = next(one for one in answers if one.status_code == 429)
        assert "maximum is 3, [responses] background" in refused.json()["error"]["message"]
        wrong = await here.gateway.http.post("/v1/responses", json={**body, "model": "nobody"})
        assert wrong.status_code == 429
        (first, *_) = [one.json()["id"] for one in answers if one.status_code == 200]
        await here.gateway.http.post(f"/v1/responses/{first}/cancel")
        for _ in range(3):  # one that cannot begin takes nothing
            wrong = await here.gateway.http.post("/v1/responses", json={**body, "model": "no"})
            assert wrong.status_code == 404
        assert (await here.gateway.http.post("/v1/responses", json=body)).status_code == 200
        assert (await here.gateway.http.post("/v1/responses", json=body)).status_code == 429


async def test_long_conversations_are_in_memory_in_turn(
    text: TextModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, most, order = 0, 0, list[str]()
    prepare, all_ask = prepare_chat, asyncio.Event()

    async def slow(*args: Any) -> Any:
        nonlocal now, most
        now += 1
        most = max(most, now)
        order.append(args[1].messages[-1].text)
        await all_ask.wait()
        await asyncio.sleep(0.005)
        now -= 1
        return await prepare(*args)

    monkeypatch.setattr("gatewayd.resources.responses.conversations._SHORT", 0)
    async with small(text, folder) as here:
        for name in ("many", "few"):
            await here.tenant(name)
        keys = {name: await here.key(name) for name in ("many", "few")}
        first = {
            name: (await here.post("/v1/responses", key, {"model": "nano", "input": "x"})).json()
            for name, key in keys.items()
        }
        monkeypatch.setattr(run, "prepare_chat", slow)

        def go_on(name: str) -> Any:
            previous = {"previous_response_id": first[name]["id"]}
            return here.post(
                "/v1/responses", keys[name], {"model": "nano", "input": name, **previous}
            )

        many = [asyncio.create_task(go_on("many")) for _ in range(30)]
        queue = here.durable._conversations.queue
        await until(lambda: queue.num_running + queue.num_waiting == 30)
        few = [asyncio.create_task(go_on("few")) for _ in range(3)]
        await until(lambda: queue.num_running + queue.num_waiting == 33)
        all_ask.set()
        answers = await asyncio.gather(*few, *many)
        assert {one.status_code for one in answers} == {200}
    assert most <= 4
    assert order.index("few") < 10
    assert max(at for at, name in enumerate(order) if name == "few") < 20


async def test_a_slow_follower_has_a_copy_of_a_piece_and_not_of_all() -> None:
    rng = random.Random(1)
    log, made = ResponseLog(), list[bytes]()
    for _ in range(200):
        made.append(rng.randbytes(rng.choice([1, 100, 5000, 300_000])))
    log.add(*made)
    log.close()
    for after in (-1, 0, 57, 199):
        pieces = [piece async for piece in ResponseLogReader(log, after)]
        assert b"".join(pieces) == b"".join(made[after + 1 :])
        assert all(0 < len(piece) <= 64 * KIB for piece in pieces)
