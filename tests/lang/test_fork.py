"""Forks: same ids, prefix computed once, concurrent branches."""

from __future__ import annotations

import asyncio

import pytest

from gatewayd_lang import GenError, Server, State, assistant, function, gen, join, user
from tests.lang.fake_server import Body, FakeServer, Refused


def last_word(prompt: str, body: Body) -> str:
    return f"<{prompt.rsplit(' ', 1)[-1]}>"


@function
def tips(s: State, count: int) -> list[str]:
    s += "Tips: "
    forks = s.fork(count)
    for at, fork in enumerate(forks):
        fork += f"tip {at}"
        fork += gen("tip")
    joined = join(forks, separator="; ")
    s += joined
    s += gen("summary")
    return joined["tip"]


def test_branches_are_joined_in_order(fake: FakeServer, server: Server) -> None:
    fake.reply = last_word
    state = tips.on(server).run(3)
    assert state.returned == ["<0>", "<1>", "<2>"]
    assert state.text == "Tips: tip 0<0>; tip 1<1>; tip 2<2><2<2>>"
    assert all(prompt.startswith("<BEGIN>Tips: ") for prompt in fake.prompts)
    assert sorted(fake.prompts[1:4]) == [f"<BEGIN>Tips: tip {at}" for at in range(3)]


def test_what_they_begin_with_is_computed_first_and_once(fake: FakeServer, server: Server) -> None:
    asked_by_then: list[int] = []

    async def watch(body: Body, at: int) -> None:
        if len(asked_by_then) == 0:
            await asyncio.sleep(0.05)
            asked_by_then.append(len(fake.asked))

    fake.step = watch
    tips.on(server).run(4)
    assert asked_by_then == [1]
    assert fake.prompts.count("<BEGIN>Tips: ") == 1
    assert fake.asked[0]["max_tokens"] == 1
    assert len(fake.asked) == 1 + 4 + 1


def test_it_is_computed_where_the_branches_find_it(fake: FakeServer, server: Server) -> None:
    @function
    def salted(s: State) -> None:
        s += "x"
        for fork in s.fork(2):
            fork += "y" + gen("a", cache_salt="mine", temperature=1.5, priority=3, seed=7)

    salted.on(server).run()
    told = {name: value for name, value in fake.asked[0].items() if name != "prompt"}
    assert told == {"model": "fake", "max_tokens": 1, "cache_salt": "mine", "priority": 3}


def test_a_prefix_that_is_refused_is_told_by_the_branches(fake: FakeServer, server: Server) -> None:
    def reply(prompt: str, body: Body) -> str:
        raise Refused(400, "too long", "prompt")

    fake.reply = reply

    @function
    def branches(s: State) -> None:
        s += "x"
        for fork in s.fork(2):
            fork += "y" + gen("a")

    with pytest.raises(GenError, match="gen 'a': too long"):
        branches.on(server).run()


def test_forks_at_the_same_place_compute_it_once(fake: FakeServer, server: Server) -> None:
    @function
    def branches(s: State) -> None:
        s += "x"
        for fork in s.fork(2):
            for leaf in fork.fork(2):
                leaf += "y" + gen("a")

    branches.on(server).run()
    assert sorted(fake.prompts) == ["<BEGIN>x"] + ["<BEGIN>xy"] * 4


def test_branches_run_at_the_same_time(fake: FakeServer, server: Server) -> None:
    together = asyncio.Event()

    async def meet(body: Body, at: int) -> None:
        if at == 1 and len(fake.asked) == 1 + 4:
            together.set()
        if at == 1:
            await asyncio.wait_for(together.wait(), 30)

    fake.step = meet

    @function
    def four(s: State) -> None:
        s += "x"
        for at, fork in enumerate(s.fork(4)):
            fork += str(at) + gen("a")

    four.on(server).run()
    assert together.is_set()


def test_a_first_one_that_fails_does_not_hold_the_others(fake: FakeServer, server: Server) -> None:
    @function
    def branches(s: State) -> str:
        s += "x"
        first, second = s.fork(2)
        first += gen("a", max_tokens=1, regex="a+")  # cut off
        second += "y" + gen("a")
        with pytest.raises(GenError, match="cut off"):
            first["a"]
        return second["a"]

    assert branches.on(server).run().returned == "ok"


def test_forks_of_forks_know_what_was_before_and_nothing_of_each_other(
    fake: FakeServer, server: Server
) -> None:
    fake.reply = lambda prompt, body: prompt[-1].upper()

    @function
    def grow(s: State) -> list[str]:
        s += "x" + gen("root")
        leaves = []
        for branch, name in zip(s.fork(2), "ab", strict=True):
            branch += name
            for leaf, end in zip(branch.fork(2), "cd", strict=True):
                leaf += end + gen("leaf")
                leaves.append(leaf)
        s += "z" + gen("leaf")
        return [leaf["root"] + leaf.branch_text + leaf.text for leaf in leaves]

    state = grow.on(server).run()
    assert state.returned == ["XcCxXacC", "XdDxXadD", "XcCxXbcC", "XdDxXbdD"]
    assert state.text == "xXzZ"


def test_a_fork_has_the_turns_so_far(fake: FakeServer, server: Server) -> None:
    @function
    def talk(s: State) -> None:
        s += user("A")
        for fork in s.fork(2):
            fork += assistant(gen("a"))
            fork += user("more")
            assert [m.text for m in fork.messages] == ["A", "ok", "more"]

    assert [m.text for m in talk.on(server).run().messages] == ["A"]


def test_what_is_appended_to_the_trunk_later_is_not_in_the_branches(
    fake: FakeServer, server: Server
) -> None:
    @function
    def grow(s: State) -> str:
        s += "x"
        (fork,) = s.fork(1)
        s += "y" + gen("a")
        s["a"]
        fork += gen("b")
        return fork.text

    assert grow.on(server).run().returned == "xok"


def test_there_is_at_least_one_branch(server: Server) -> None:
    @function
    def none(s: State) -> None:
        s.fork(0)

    with pytest.raises(ValueError, match="at least one"):
        none.on(server).run()
