"""Background responses: followed while they run and afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from gatewayd.errors import NumericalError
from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import fails, hangs_after, says
from tests.gatewayd.gateway import Gateway, until
from tests.gatewayd.responses_gateway import ANSWER, ORDER, ask, serving

STRICT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
LONG = list(range(300, 340))


async def begun(gateway: Gateway, **fields: Any) -> Any:
    """A stream of the background."""
    asked = {"model": "nano", "input": "hi", "background": True, "stream": True, **fields}
    return await gateway.openai.responses.create(**asked)


async def again(gateway: Gateway, response_id: str, after: int | None = None) -> list[Any]:
    given: Any = {} if after is None else {"starting_after": after}
    stream = await gateway.openai.responses.retrieve(response_id, stream=True, **given)
    return [event async for event in stream]


def check(events: list[Any]) -> None:
    """By the SDK's own types, and their numbers."""
    for event in events:
        STRICT.validate_python(event.model_dump())
    assert [event.sequence_number for event in events] == list(range(len(events)))


async def test_a_stream_of_the_background_is_told_as_it_comes(
    text: TextModel, folder: Path
) -> None:
    async with serving(text, folder, says(LONG, delay=0.005)) as gateway:
        events = [event async for event in await begun(gateway)]
        check(events)
        made = events[-1].response
        assert events[0].response.background
        deltas = [one.delta for one in events if one.type == "response.output_text.delta"]
        assert len(deltas) > 5
        assert "".join(deltas) == made.output_text
        assert made == await gateway.openai.responses.retrieve(made.id)
        assert await again(gateway, made.id) == events


@pytest.mark.parametrize("reader", ["leaves", "reads on"])
async def test_a_client_that_left_comes_back_for_every_event(
    text: TextModel, folder: Path, reader: str
) -> None:
    async with serving(text, folder, says(LONG, delay=0.01)) as gateway:
        stream = await begun(gateway, include=["message.output_text.logprobs"])
        seen = [await anext(stream) for _ in range(7)]
        made = seen[0].response
        if reader == "leaves":
            await stream.close()
        running, whole = await asyncio.gather(
            again(gateway, made.id, seen[-1].sequence_number), again(gateway, made.id)
        )
        over = await again(gateway, made.id, seen[-1].sequence_number)
        check(whole)
        assert seen + running == seen + over == whole
        assert len(whole) > 20
        if reader == "reads on":
            assert seen + [event async for event in stream] == whole
        assert whole[-1].type == "response.completed"
        assert len(gateway.fleet.jobs) == 1
        assert await again(gateway, made.id, whole[-1].sequence_number) == []


async def test_what_was_told_outlives_the_daemon(text: TextModel, folder: Path) -> None:
    async with serving(text, folder, says(LONG, delay=0.002)) as gateway:
        events = [event async for event in await begun(gateway)]
    async with serving(text, folder, says(ANSWER)) as gateway:
        assert await again(gateway, events[0].response.id) == events
        assert await again(gateway, events[0].response.id, 9) == events[10:]


async def test_a_daemon_that_dies_under_a_stream_says_so_to_who_comes_back(
    text: TextModel, folder: Path
) -> None:
    async with serving(text, folder, hangs_after(LONG)) as gateway:
        stream = await begun(gateway)
        seen = [await anext(stream) for _ in range(5)]
    async with serving(text, folder, says(ANSWER)) as gateway:
        (last,) = await again(gateway, seen[0].response.id, seen[-1].sequence_number)
        assert last.type == "response.failed"
        assert last.sequence_number == seen[-1].sequence_number + 1


async def test_one_that_fails_keeps_what_was_told(text: TextModel, folder: Path) -> None:
    script = fails(NumericalError("not numbers"), after=LONG[:5])
    async with serving(text, folder, script) as gateway:
        events = [event async for event in await begun(gateway)]
        check(events)
        last = events[-1]
        assert last.type == "response.failed"
        assert last.response.output[0].status == "incomplete"
        assert await again(gateway, last.response.id) == events


@pytest.mark.parametrize("end", ["cancel", "delete"])
async def test_who_follows_the_background_is_told_of_its_end(
    text: TextModel, folder: Path, end: str
) -> None:
    async with serving(text, folder, hangs_after(ANSWER)) as gateway:
        made = await ask(gateway, background=True)
        stream = await gateway.openai.responses.retrieve(made.id, stream=True)
        events: list[Any] = [await anext(stream) for _ in range(5)]
        ended = await getattr(gateway.openai.responses, end)(made.id)
        await until(lambda: gateway.fleet.jobs[0].gone.is_set())
        events += [event async for event in stream]
        check(events)
        if end == "cancel":
            assert (events[-1].type, ended.status) == ("response.incomplete", "cancelled")
            assert events[-1].response == ended
            assert ended.output_text.startswith(events[4].delta)
            assert await again(gateway, made.id) == events
            assert (await gateway.openai.responses.cancel(made.id)).status == "cancelled"
        else:
            assert events[-1].type == "error"
            with pytest.raises(openai.NotFoundError):
                await again(gateway, made.id)


async def test_one_that_is_over_can_be_told_from_any_event(gateway: Gateway) -> None:
    made = await ask(gateway, background=True)
    events = await again(gateway, made.id)
    assert list(dict.fromkeys(event.type for event in events)) == ORDER
    for after in (0, 4, len(events) - 1):
        assert await again(gateway, made.id, after) == events[after + 1 :]
    wrong = await gateway.http.get(f"/v1/responses/{made.id}?stream=true&starting_after=x")
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "starting_after")


async def test_an_event_that_is_far_ahead_is_waited_for(text: TextModel, folder: Path) -> None:
    async with serving(text, folder, says(ANSWER, delay=0.02)) as gateway:
        made = await ask(gateway, background=True)
        assert await again(gateway, made.id, 1000) == []
