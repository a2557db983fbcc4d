"""``gen``: its request parameters."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from gatewayd_lang import GenError, Server, State, function, gen, select
from tests.lang.fake_server import FakeServer


class Point(BaseModel):
    x: int


SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        ({"regex": "[0-9]+"}, {"regex": "[0-9]+"}),
        ({"choices": ["a", "b"]}, {"choice": ["a", "b"]}),
        ({"grammar": "start: A"}, {"grammar": "start: A"}),
        ({"json_schema": SCHEMA}, {"json": SCHEMA}),
        ({"json_schema": '{"type": "null"}'}, {"json": {"type": "null"}}),
        ({"json_schema": Point}, {"json": Point.model_json_schema()}),
    ],
)
def test_what_it_follows_is_sent_as_structured_outputs(
    asked: dict[str, Any], sent: dict[str, Any]
) -> None:
    assert gen("x", **asked).fields["structured_outputs"] == sent


def test_it_follows_one_thing() -> None:
    with pytest.raises(ValueError, match="regex and choice; it can follow one"):
        gen("x", regex="a", choices=["b"])


@pytest.mark.parametrize("choices", [[], ["a", ""]])
def test_choices_are_texts(choices: list[str]) -> None:
    with pytest.raises(ValueError, match="needs choices"):
        gen("x", choices=choices)


def test_choices_have_room_for_the_longest() -> None:
    assert gen("x", choices=["no", "näh"]).fields["max_tokens"] == 5
    assert select("x", ["no"]).fields["temperature"] == 0
    assert gen("x").fields["max_tokens"] == 128


@function
def extract(s: State) -> None:
    s += "Year: " + gen("year", regex="[0-9]{4}", max_tokens=3)


def test_an_answer_that_was_cut_off_is_no_match(fake: FakeServer, server: Server) -> None:
    fake.reply = lambda prompt, body: "1984"
    with pytest.raises(GenError, match=r"gen 'year': .*cut off after 3 tokens") as caught:
        extract.on(server).run()
    assert caught.value.text == "198"
    assert caught.value.name == "year"


def test_free_text_may_be_cut_off(fake: FakeServer, server: Server) -> None:
    fake.reply = lambda prompt, body: "1984"

    @function
    def free(s: State) -> None:
        s += "Year: " + gen("year", max_tokens=3)

    state = free.on(server).run()
    assert state["year"] == "198"
    assert state.answer("year").finish_reason == "length"


def test_a_server_that_does_not_keep_to_the_choices_is_found_out(
    fake: FakeServer, server: Server
) -> None:
    fake.reply = lambda prompt, body: "ma"

    @function
    def choose(s: State) -> None:
        s += "yes or no? " + gen("it", choices=["yes", "no"])

    with pytest.raises(GenError, match="none of the choices"):
        choose.on(server).run()
