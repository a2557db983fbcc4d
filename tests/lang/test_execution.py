"""Execution: sync, async, streamed and batched runs are the same program."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from gatewayd_lang import GenError, Server, State, function, gen, set_default_server
from gatewayd_lang.server import default_server
from tests.lang.fake_server import Body, FakeServer, Refused


@function
def ask(s: State, word: str) -> str:
    s += word + gen("a") + "," + gen("b")
    return s["a"]


def echo(prompt: str, body: Body) -> str:
    if "bad" in prompt:
        raise Refused(400, "bad")
    return prompt[-1] * 3


def test_a_run_and_its_name(fake: FakeServer, server: Server) -> None:
    fake.reply = echo
    assert ask.on(server).run("x").text == "xxxx,,,,"
    assert getattr(ask, "__name__") == "ask"  # noqa: B009 - set by functools


async def test_many_are_awaited_at_once(fake: FakeServer, server: Server) -> None:
    fake.reply = echo
    runs = [ask.on(server).arun(word) for word in "uvw"]
    assert [state.returned for state in await asyncio.gather(*runs)] == ["uuu", "vvv", "www"]
    with pytest.raises(GenError, match="gen 'a': bad"):
        await ask.on(server).arun("bad")


async def test_a_run_that_is_cancelled_asks_no_more(fake: FakeServer, server: Server) -> None:
    async def wait(body: Body, at: int) -> None:
        await asyncio.sleep(60)

    fake.step = wait
    run = asyncio.create_task(ask.on(server).arun("x"))
    while not fake.asked:
        await asyncio.sleep(0.001)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert len(fake.asked) == 1


def test_a_text_is_read_along(fake: FakeServer, server: Server) -> None:
    fake.reply = echo
    go_on = threading.Event()

    async def hold(body: Body, at: int) -> None:
        while at == 2 and not go_on.is_set():
            await asyncio.sleep(0.001)

    fake.step = hold
    state = ask.on(server).stream("x")
    pieces = state.text_iter("a")
    first = next(pieces)
    if first == "x":
        first += next(pieces)
    assert first == "xx"
    go_on.set()
    assert list(pieces) == ["x"]
    assert "".join(state.text_iter("b")) == ",,,"
    assert "".join(state.text_iter("a")) == "xxx"
    assert state["b"] == ",,,"


async def test_a_text_is_read_along_and_awaited(fake: FakeServer, server: Server) -> None:
    fake.reply = echo
    state = ask.on(server).stream("x")
    assert "".join([piece async for piece in state.text_aiter("b")]) == ",,,"


def test_whoever_reads_along_is_told_what_went_wrong(fake: FakeServer, server: Server) -> None:
    fake.reply = echo
    state = ask.on(server).stream("bad")
    with pytest.raises(GenError, match="gen 'a': bad"):
        list(state.text_iter("a"))
    with pytest.raises(GenError, match="gen 'a': bad"):
        state["b"]
    with pytest.raises(KeyError):
        ask.on(server).stream("x")["c"]


def test_a_batch_keeps_its_order_and_its_errors(fake: FakeServer, server: Server) -> None:
    fake.reply = echo
    told: list[tuple[int, int]] = []
    words = ["u", "bad", "w", "x"]
    states = ask.on(server).run_batch(
        [{"word": word} for word in words],
        concurrency=2,
        progress=lambda done, total: told.append((done, total)),
    )
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert [state.returned for state in states] == ["uuu", None, "www", "xxx"]
    assert [state.error is None for state in states] == [True, False, True, True]
    with pytest.raises(GenError, match="bad"):
        states[1]["a"]


def test_no_more_than_so_many_run_at_a_time(fake: FakeServer, server: Server) -> None:
    running, most = set(), []

    async def count(body: Body, at: int) -> None:
        running.add(tuple(body["prompt"]))
        most.append(len(running))
        await asyncio.sleep(0.002)
        if at == 1:
            running.discard(tuple(body["prompt"]))

    fake.step = count
    ask.on(server).run_batch([{"word": str(number)} for number in range(12)], concurrency=3)
    assert max(most) == 3


def test_progress_is_shown(
    fake: FakeServer, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    ask.on(server).run_batch([{"word": "x"}] * 2, progress=True)
    assert capsys.readouterr().err.endswith("\r2/2\n")


def test_a_batch_that_is_interrupted_ends_all(fake: FakeServer, server: Server) -> None:
    async def wait(body: Body, at: int) -> None:
        await asyncio.sleep(60 if "y" in map(chr, body["prompt"][1:]) else 0)

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    fake.step = wait
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        ask.on(server).run_batch([{"word": w} for w in "xyyy"], concurrency=2, progress=interrupt)
    assert time.monotonic() - began < 30


def test_a_run_that_was_ended_before_it_began_can_be_read(server: Server) -> None:
    program = ask.on(server)
    state = program._new_state()
    state.end(KeyboardInterrupt())
    began, may_end = threading.Event(), threading.Event()
    raised: list[BaseException] = []

    def begin() -> None:
        program._perform(state, ("x",), {})
        began.set()
        may_end.wait(20)  # another thread gets another id meanwhile

    threading.Thread(target=begin).start()
    assert began.wait(20)

    def read() -> None:
        try:
            state["a"]
        except BaseException as error:  # noqa: BLE001 - whatever ended the run
            raised.append(error)

    # A daemon: waiting without end must not keep the tests from ending.
    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    reading.join(10)
    may_end.set()
    assert [type(error) for error in raised] == [KeyboardInterrupt]


def test_a_batch_needs_room(server: Server) -> None:
    with pytest.raises(ValueError, match="concurrency is 0"):
        ask.on(server).run_batch([], concurrency=0)


def test_a_program_is_a_plain_function() -> None:
    with pytest.raises(TypeError, match="coroutine function"):

        @function
        async def wrong(s: State) -> None: ...


@pytest.fixture
def environment(fake: FakeServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GATEWAYD_URL", f"{fake.url}/v1/")
    monkeypatch.setenv("GATEWAYD_API_KEY", "secret")
    set_default_server(None)
    yield
    default_server().close()
    set_default_server(None)


@pytest.mark.usefixtures("environment")
def test_the_default_server_is_that_of_the_environment(fake: FakeServer) -> None:
    assert ask.run("x").returned == "ok"
    assert fake.headers[0]["Authorization"] == "Bearer secret"


def test_a_server_is_chosen_for_all(fake: FakeServer, server: Server) -> None:
    set_default_server(server)
    try:
        assert ask.run("x").returned == "ok"
    finally:
        set_default_server(None)
