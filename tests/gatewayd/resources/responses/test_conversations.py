"""Stored responses: conversations, restarts, absent clients."""

from __future__ import annotations

import asyncio
import sqlite3
from itertools import count
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from gatewayd.resources.responses import records
from gatewayd.resources.responses.previous_responses import chain
from gatewayd.text.text_model import TextModel
from gatewayd_hooks.requests.fields import MAX_MESSAGES
from tests.gatewayd.fake_fleet import hangs_after, says
from tests.gatewayd.gateway import Gateway, until
from tests.gatewayd.responses_gateway import ANSWER, ORDER, ask, checked, serving
from tests.gatewayd.store_fixtures import opened

STRICT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


async def test_a_conversation_goes_on_behind_a_stored_response(gateway: Gateway) -> None:
    first = await ask(gateway, input="one", instructions="only here")
    second = await ask(gateway, input="two", previous_response_id=first.id)
    third = await ask(gateway, input="three", previous_response_id=second.id)
    assert third.previous_response_id == second.id
    said = first.output_text
    await gateway.openai.chat.completions.create(
        model="nano",
        messages=[
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": said},
            {"role": "user", "content": "two"},
            {"role": "assistant", "content": said},
            {"role": "user", "content": "three"},
        ],
    )
    *_, mine, theirs = [job.request.prompt for job in gateway.fleet.jobs]
    assert mine == theirs
    await gateway.openai.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError) as caught:
        await ask(gateway, previous_response_id=second.id)
    assert caught.value.param == "previous_response_id"


async def test_an_item_that_was_said_can_be_named(gateway: Gateway) -> None:
    others = [await ask(gateway, input="other") for _ in range(3)]
    first = await ask(gateway, input="one")
    others.append(await ask(gateway, input="other"))
    named: list[Any] = [
        {"role": "user", "content": "one"},
        {"type": "item_reference", "id": first.output[0].id},
        {"role": "user", "content": "two"},
    ]
    second = await ask(gateway, input=named)
    await ask(gateway, input="two", previous_response_id=first.id)
    *_, mine, theirs = [job.request.prompt for job in gateway.fleet.jobs]
    assert mine == theirs
    given = [one async for one in gateway.openai.responses.input_items.list(second.id, order="asc")]
    assert given[1] == first.output[0]
    twice = await ask(gateway, input=[named[0], named[1], named[0], named[1]])
    given = [one async for one in gateway.openai.responses.input_items.list(twice.id)]
    assert len({one.id for one in given}) == 4


@pytest.mark.parametrize("item_id", ["msg_1", "msg_" + "0" * 32, "msg_" + "f" * 32, "%", None])
async def test_an_item_that_is_not_kept_is_not_found(gateway: Gateway, item_id: str | None) -> None:
    if item_id is None:
        item_id = (await ask(gateway, store=False)).output[0].id
    with pytest.raises(openai.NotFoundError) as caught:
        await ask(gateway, input=[{"type": "item_reference", "id": item_id}])
    assert caught.value.param == "input[0].id"


async def test_of_a_conversation_no_more_is_read_than_a_chat_may_have(folder: Path) -> None:
    def add(connection: Connection) -> list[dict[str, Any]]:
        for number in range(10):
            body = {
                "id": f"resp_{number}",
                "created_at": number,
                "status": "completed",
                "previous_response_id": f"resp_{number - 1}" if number else None,
                "output": [{"id": number}],
            }
            records.add(connection, "default", body, [{"id": number}] * 999)
        return chain(connection, "default", "resp_9", most_bytes=1 << 30, is_cut=False).items

    with opened(folder) as durable:
        found = await durable.database.write(add)
    assert [one["id"] for one in found] == sorted(one["id"] for one in found)
    assert MAX_MESSAGES < len(found) <= MAX_MESSAGES + 1000


async def test_what_is_stored_is_kept_through_a_restart(text: TextModel, folder: Path) -> None:
    async with serving(text, folder, says(ANSWER)) as gateway:
        made = await ask(gateway, input=[{"role": "user", "content": "one"}] * 3)
        unkept = await ask(gateway, store=False)
    async with serving(text, folder, says(ANSWER)) as gateway:
        assert await gateway.openai.responses.retrieve(made.id) == made
        given = gateway.openai.responses.input_items
        items = [item async for item in given.list(made.id, limit=2, order="asc")]
        assert len(items) == 3
        assert {item.type for item in items} == {"message"}
        newest = [item.id async for item in given.list(made.id)]
        assert newest == [item.id for item in items[::-1]]
        for call in (gateway.openai.responses.retrieve, gateway.openai.responses.delete):
            with pytest.raises(openai.NotFoundError):
                await call(unkept.id)
        await gateway.openai.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError):
            await gateway.openai.responses.retrieve(made.id)


async def test_the_background_goes_on_and_is_asked_later(gateway: Gateway) -> None:
    response = checked(await ask(gateway, background=True))
    assert response.status == "in_progress"
    async with asyncio.timeout(30):
        while (found := await gateway.openai.responses.retrieve(response.id)).status != "completed":
            await asyncio.sleep(0.01)
    assert found.output_text
    assert (await gateway.openai.responses.cancel(response.id)).status == "completed"


async def test_the_background_can_be_cancelled_and_a_restart_tells_of_what_it_lost(
    text: TextModel, folder: Path
) -> None:
    async with serving(text, folder, hangs_after(ANSWER)) as gateway:
        ended = await ask(gateway, background=True)
        assert (await gateway.openai.responses.cancel(ended.id)).status == "cancelled"
        await until(lambda: gateway.fleet.jobs[0].gone.is_set())
        lost = await ask(gateway, background=True)
    async with serving(text, folder, says(ANSWER)) as gateway:
        found = checked(await gateway.openai.responses.retrieve(lost.id))
        assert found.status == "failed"
        assert found.error is not None
        assert (found.error.code, "daemon ended" in found.error.message) == ("server_error", True)
        assert (await gateway.openai.responses.retrieve(ended.id)).status == "cancelled"
        with pytest.raises(openai.BadRequestError) as caught:
            await ask(gateway, previous_response_id=lost.id)
        assert caught.value.param == "previous_response_id"
        plain = await ask(gateway)
        with pytest.raises(openai.BadRequestError, match="not in the background"):
            await gateway.openai.responses.cancel(plain.id)


async def test_events_of_what_is_kept_are_told_again(gateway: Gateway) -> None:
    made = await ask(gateway)
    stream = await gateway.openai.responses.retrieve(made.id, stream=True)
    events = [event async for event in stream]
    for event in events:
        STRICT.validate_python(event.model_dump())
    assert [event.type for event in events] == ORDER
    assert [event.sequence_number for event in events] == list(range(len(events)))
    opening, last = events[0], events[-1]
    assert opening.type == "response.created"
    assert (opening.response.status, opening.response.output) == ("in_progress", [])
    assert last.type == "response.completed"
    assert last.response == made
    with pytest.raises(openai.BadRequestError) as caught:
        await gateway.openai.responses.retrieve(made.id, stream=True, starting_after=3)
    assert caught.value.param == "starting_after"


async def test_the_background_holds_its_answer_until_there_is_room(
    text: TextModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace, attempts = records.replace, count()

    def full(connection: Connection, kept: records.StoredResponse) -> None:
        if next(attempts) < 2:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise OperationalError("", {}, error)
        replace(connection, kept)

    monkeypatch.setattr("gatewayd.store.retry._SECONDS", 0.01)
    monkeypatch.setattr(records, "replace", full)
    async with serving(text, folder, says(ANSWER)) as gateway:
        made = await ask(gateway, background=True)
        async with asyncio.timeout(30):
            while (found := await gateway.openai.responses.retrieve(made.id)).status != "completed":
                await asyncio.sleep(0.01)
    assert found.output_text
    assert next(attempts) == 3
