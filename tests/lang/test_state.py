"""State: appended parts become token ids in order, and results are readable."""

from __future__ import annotations

import pytest

from gatewayd_lang import LangError, Message, Server, State, TemplateError, function, gen
from gatewayd_lang import assistant as assistant_
from gatewayd_lang import system as system_
from gatewayd_lang import user as user_
from tests.lang.fake_server import BEGIN, FakeServer, shown


def test_texts_between_two_gens_are_one_segment_and_answers_stay_as_they_came(
    fake: FakeServer, server: Server
) -> None:
    fake.reply = lambda prompt, body: {"What?": "this", "What?this, and?": "that"}[prompt[7:]]

    @function
    def twice(s: State) -> str:
        s += "What"
        s += "?" + gen("first") + ", and?"
        s += gen("second", max_tokens=9, temperature=0.5, frequency_penalty=1.0)
        return s["second"]

    state = twice.on(server).run()
    assert fake.prompts == ["<BEGIN>What?", "<BEGIN>What?this, and?"]
    assert fake.asked[1] | {"prompt": None} == {
        "model": "fake",
        "prompt": None,
        "max_tokens": 9,
        "temperature": 0.5,
        "frequency_penalty": 1.0,
        "return_token_ids": True,
    }
    assert state["first"] == "this"
    assert state.returned == "that"
    assert state.text == "What?this, and?that"
    assert state.ids == [BEGIN, *map(ord, state.text)]
    first = state.answer("first")
    assert (first.finish_reason, first.prompt_tokens, first.cached_tokens) == ("stop", 7, 3)
    assert first.completion_tokens == 4


@pytest.mark.parametrize("stop", ["\n", ["###", "\n"], "s\n"])
def test_a_stop_string_is_neither_in_the_text_nor_in_the_ids(
    fake: FakeServer, server: Server, stop: str | list[str]
) -> None:
    fake.reply = lambda prompt, body: "yes\nno"

    @function
    def ask(s: State) -> None:
        s += "Q" + gen("a", stop=stop) + "." + gen("b")

    state = ask.on(server).run()
    said = "ye" if stop == "s\n" else "yes"
    assert state["a"] == said
    assert fake.prompts[1] == f"<BEGIN>Q{said}."


def test_a_turn_is_framed_as_the_template_does(fake: FakeServer, server: Server) -> None:
    fake.reply = lambda prompt, body: "hi"

    @function
    def talk(s: State) -> None:
        s += system_("Be kind.")
        s += user_("Hello" + gen("mood"))
        with s.assistant():
            s += "Well, "
            s += gen("answer")
        s += user_("Bye")

    state = talk.on(server).run()
    head = "<BEGIN><TURN>system\nBe kind.<END>\n<TURN>user\nHello"
    assert fake.prompts == [head, f"{head}hi<END>\n<TURN>assistant\nWell, "]
    assert shown(state.ids).endswith("Well, hi<END>\n<TURN>user\nBye<END>\n")
    assert state.messages == [
        Message("system", "Be kind."),
        Message("user", "Hellohi"),
        Message("assistant", "Well, hi"),
        Message("user", "Bye"),
    ]


def test_a_template_that_changes_earlier_turns_writes_the_conversation_anew(
    fake: FakeServer, server: Server
) -> None:
    fake.forgets = True
    fake.reply = lambda prompt, body: "[hm]yes"

    @function
    def talk(s: State) -> None:
        s += user_("A") + assistant_(gen("x")) + user_("B") + assistant_(gen("y"))

    state = talk.on(server).run()
    assert fake.prompts[1] == (
        "<BEGIN><TURN>user\nA<END>\n<TURN>assistant\nyes<END>\n<TURN>user\nB<END>\n<TURN>assistant\n"
    )
    assert state["y"] == "[hm]yes"


def test_a_template_that_cannot_end_with_the_first_turn_can_go_on_behind_it(
    fake: FakeServer, server: Server
) -> None:
    fake.needs_user = True

    @function
    def talk(s: State) -> None:
        s += system_("S") + user_("U") + assistant_(gen("x"))

    with pytest.raises(LangError, match="a user must speak first"):
        talk.on(server).run()  # its probes are such conversations


def test_text_between_turns_is_not_lost_silently(fake: FakeServer, server: Server) -> None:
    fake.forgets = True
    fake.reply = lambda prompt, body: "[hm]yes"

    @function
    def talk(s: State) -> None:
        s += user_("A") + assistant_(gen("x")) + "between" + user_("B")

    with pytest.raises(TemplateError, match="put it into a turn"):
        talk.on(server).run()


def test_what_stands_before_the_turns_stays(fake: FakeServer, server: Server) -> None:
    fake.forgets = True
    fake.reply = lambda prompt, body: "[hm]yes"

    @function
    def talk(s: State) -> None:
        s += "Notes: " + user_("A") + assistant_(gen("x")) + user_("B") + assistant_(gen("y"))

    talk.on(server).run()
    assert fake.prompts[1].startswith("<BEGIN>Notes: <BEGIN><TURN>user\nA<END>\n")


def test_turns_do_not_nest(server: Server) -> None:
    @function
    def talk(s: State) -> None:
        with s.user():
            s += assistant_("x")

    with pytest.raises(ValueError, match="cannot begin within one of the user"):
        talk.on(server).run()


def test_programs_are_parts_of_programs(fake: FakeServer, server: Server) -> None:
    @function
    def inner(s: State, word: str) -> None:
        s += word + gen("inner")

    @function
    def outer(s: State) -> None:
        s += "outer "
        inner(s, "inner ")

    assert outer.on(server).run().text == "outer inner ok"


def test_only_pieces_can_be_appended(server: Server) -> None:
    @function
    def wrong(s: State) -> None:
        s += 3  # type: ignore[arg-type]

    with pytest.raises(TypeError, match="int cannot be appended"):
        wrong.on(server).run()
