"""Truncation: conversations longer than the context."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from gatewayd.http.schema.responses import InputItem
from gatewayd.resources.responses.items import stored_items
from gatewayd.resources.responses.truncation import possible_starts, truncated
from tests.gatewayd.fake_fleet import CONTEXT
from tests.gatewayd.gateway import Gateway
from tests.gatewayd.responses_gateway import ask


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def call(name: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": name, "name": name, "arguments": "{}"}


def output(name: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": name, "output": name}


def items(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return stored_items([InputItem.model_validate(one) for one in given])


def names(found: list[dict[str, Any]]) -> list[str]:
    return [one.get("name") or one.get("output") or one["content"][0]["text"] for one in found]


def test_what_is_left_begins_at_turns_and_has_calls_with_their_outputs() -> None:
    given = items(
        [
            {"role": "developer", "content": "rules"},
            user("q1"),
            call("f1"),
            output("f1"),
            user("q2"),
            {"role": "system", "content": "more"},
            call("f2"),
            call("f3"),
            output("f2"),
            output("f3"),
            call("f4"),
            output("f4"),
        ]
    )
    found = [names(truncated(given, start)) for start in possible_starts(given)]
    assert found == [
        names(given),
        names(given),
        ["rules", "q2", "more", "f2", "f3", "f2", "f3", "f4", "f4"],
        ["rules", "q2", "more", "f4", "f4"],
    ]


def test_a_conversation_has_no_more_items_than_chat_takes() -> None:
    given = items([user(str(n)) for n in range(4096)]) * 3
    assert len(given) - possible_starts(given)[0] == 4095


async def test_the_most_that_fits_is_answered(gateway: Gateway) -> None:
    turns = [user(f"turn {n} " + "word " * 30) for n in range(60)]
    with pytest.raises(openai.BadRequestError) as caught:
        await ask(gateway, input=turns)
    assert caught.value.code == "context_length_exceeded"
    made = await ask(gateway, input=turns, truncation="auto", max_output_tokens=3)
    assert made.truncation == "auto"
    (job,) = gateway.fleet.jobs
    for first in range(60):
        try:
            await ask(gateway, input=turns[first:], max_output_tokens=3)
            break
        except openai.BadRequestError:
            pass
    assert gateway.fleet.jobs[-1].request.prompt == job.request.prompt
    assert CONTEXT / 2 < len(job.request.prompt) <= CONTEXT - 3
    given = gateway.openai.responses.input_items.list(made.id)
    assert len([one async for one in given]) == 60


async def test_a_conversation_without_end_goes_on(gateway: Gateway) -> None:
    previous = None
    for number in range(12):
        previous = await ask(
            gateway,
            input=f"{number} " + "word " * 200,
            truncation="auto",
            previous_response_id=previous and previous.id,
        )
    # What was left out stays out: little more fits, but not much.
    with pytest.raises(openai.BadRequestError):
        await ask(gateway, input="word " * 500, previous_response_id=previous and previous.id)
    await ask(gateway, input="x", previous_response_id=previous and previous.id)
