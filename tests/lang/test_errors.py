"""Errors: raised by name to the reader of the value."""

from __future__ import annotations

import asyncio
import time

import pytest

from gatewayd_lang import GenError, LangError, Server, ServerError, State, function, gen, join
from tests.lang.fake_server import Body, FakeServer, Refused


def refuse(prompt: str, body: Body) -> str:
    if "bad" in prompt:
        raise Refused(400, "temperature is 9; the maximum is 2", "temperature")
    return "fine"


@function
def bad(s: State) -> None:
    s += "bad"
    s += gen("answer", temperature=9)


def test_a_refusal_names_the_gen_and_the_parameter(fake: FakeServer, server: Server) -> None:
    fake.reply = refuse
    with pytest.raises(GenError) as caught:
        bad.on(server).run()
    error = caught.value
    assert str(error) == "gen 'answer': temperature is 9; the maximum is 2"
    assert (error.name, error.status, error.param) == ("answer", 400, "temperature")
    assert error.code == "refused"


def test_what_is_appended_after_a_failure_is_refused(fake: FakeServer, server: Server) -> None:
    fake.reply = refuse
    seen = []

    @function
    def goes_on(s: State) -> None:
        s += "bad" + gen("a")
        try:
            s["a"]
        except GenError as error:
            seen.append(error)
        s += "more"

    with pytest.raises(GenError) as caught:
        goes_on.on(server).run()
    assert seen == [caught.value]


def test_a_branch_that_nobody_reads_does_not_fail_silently(
    fake: FakeServer, server: Server
) -> None:
    fake.reply = refuse

    @function
    def branches(s: State) -> None:
        s += "Tips: "
        good, wrong = s.fork(2)
        good += gen("tip")
        wrong += "bad" + gen("tip")

    with pytest.raises(GenError, match="gen 'tip'"):
        branches.on(server).run()


def test_a_branch_may_fail_if_the_program_has_an_answer(fake: FakeServer, server: Server) -> None:
    fake.reply = refuse

    @function
    def branches(s: State) -> str:
        s += "Tips: "
        good, wrong = s.fork(2)
        good += gen("tip")
        wrong += "bad" + gen("tip")
        try:
            return wrong["tip"]
        except GenError:
            s += join([good])
            return good["tip"]

    state = branches.on(server).run()
    assert state.returned == "fine"
    assert state.text == "Tips: fine"


def test_a_name_that_is_not_there_is_a_key_error(server: Server) -> None:
    @function
    def wrong(s: State) -> None:
        s += "x" + gen("a")
        s["b"]

    with pytest.raises(KeyError, match="no gen is named 'b'; there are: 'a'"):
        wrong.on(server).run()


def test_a_gen_needs_something_before_it(server: Server) -> None:
    @function
    def empty(s: State) -> None:
        s += gen("a")

    with pytest.raises(GenError, match="there is nothing before it"):
        empty.on(server).run()


def test_nobody_there() -> None:
    @function
    def ask(s: State) -> None:
        s += "x" + gen("a")

    with (
        Server("http://127.0.0.1:9", model="m") as nobody,
        pytest.raises(ServerError, match=r"http://127\.0\.0\.1:9") as caught,
    ):
        ask.on(nobody).run()
    assert caught.value.code == "connection"


def test_a_server_that_is_too_slow(fake: FakeServer) -> None:
    async def wait(body: Body, at: int) -> None:
        await asyncio.sleep(60)

    fake.step = wait

    @function
    def ask(s: State) -> None:
        s += "x" + gen("a")

    with (
        Server(fake.url, timeout_seconds=0.2) as slow,
        pytest.raises(GenError, match=r"did not answer within 0.2 s") as caught,
    ):
        ask.on(slow).run()
    assert caught.value.code == "timeout"


def test_a_request_that_found_no_room_is_sent_again(fake: FakeServer, server: Server) -> None:
    refusals = iter([Refused(503, "full", **{"retry-after-ms": "5"})] * 2)

    def full(prompt: str, body: Body) -> str:
        for refusal in refusals:
            raise refusal
        return "ok"

    fake.reply = full

    @function
    def ask(s: State) -> None:
        s += "x" + gen("a")

    assert ask.on(server).run()["a"] == "ok"
    assert len(fake.asked) == 3


def test_a_server_that_stays_full_is_told_of(fake: FakeServer, server: Server) -> None:
    def full(prompt: str, body: Body) -> str:
        raise Refused(503, "the queue is full", **{"retry-after-ms": "1"})

    fake.reply = full

    @function
    def ask(s: State) -> None:
        s += "x" + gen("a")

    with pytest.raises(GenError, match="the queue is full"):
        ask.on(server).run()


def test_a_program_that_raises_ends_what_is_under_way(fake: FakeServer, server: Server) -> None:
    ended = []

    async def wait(body: Body, at: int) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append(at)
            raise

    fake.step = wait
    states = []

    @function
    def gives_up(s: State) -> None:
        states.append(s)
        s += "x" + gen("a")
        while not fake.asked:
            time.sleep(0.001)
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        gives_up.on(server).run()
    with pytest.raises(LangError, match="was ended"):
        states[0].answer("a")
    deadline = time.monotonic() + 30
    while not ended and time.monotonic() < deadline:
        time.sleep(0.001)
    assert ended == [0]
