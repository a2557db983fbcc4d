"""Edge scheduler: share of an event loop turn for pipelined connections."""

from __future__ import annotations

import asyncio

import pytest

from gatewayd.http.server.edge_scheduler import MOST, REST_SECONDS, ConnectionScheduler
from gatewayd.tenants.principal import OPERATOR, Principal
from tests.virtual_time import leaping_time


class Connections:
    """They note in which turn of the loop they go on; each takes so long of it."""

    def __init__(self, seconds: float) -> None:
        self.now = 0.0
        self.turns = ConnectionScheduler(lambda: self.now)
        self.turn = 0
        self.went_on: list[tuple[int, int]] = []
        self._seconds = seconds

    def ask(self, number: int) -> None:
        self.turns.enqueue(_Connection(self, number), "192.0.2.1", OPERATOR)

    def goes_on(self, number: int) -> None:
        self.went_on.append((self.turn, number))
        self.now += self._seconds
        if number == 13:
            raise LookupError(number)

    async def until(self, count: int) -> None:
        for self.turn in range(1000):
            if len(self.went_on) == count:
                return
            await asyncio.sleep(0)
        raise AssertionError(self.went_on)


class _Connection:
    def __init__(self, all_of_them: Connections, number: int) -> None:
        self._all, self._number = all_of_them, number

    def resume(self) -> None:
        self._all.goes_on(self._number)


@pytest.mark.parametrize(
    ("seconds", "in_a_turn"),
    [(0.0, MOST), (0.0015, 2), (0.0007, 3), (0.1, 1)],
    ids=["quick", "slow", "less slow", "chunks of a byte"],
)
async def test_a_turn_of_the_loop_has_so_many_or_so_much_time(
    seconds: float, in_a_turn: int
) -> None:
    connections = Connections(seconds)
    for number in range(100, 140):
        connections.ask(number)
    await connections.until(40)
    turns = [turn for turn, _ in connections.went_on]
    assert [number for _, number in connections.went_on] == list(range(100, 140))
    assert max(turns.count(turn) for turn in turns) == in_a_turn
    assert len(set(turns)) == -(-40 // in_a_turn)


async def test_the_others_go_on_behind_one_that_fails() -> None:
    connections, faults = Connections(0.0), list[BaseException]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: faults.append(context["exception"]))
    for number in range(30):
        connections.ask(number)
    await connections.until(30)
    assert [str(fault) for fault in faults] == ["13"]


class _Pipelining:
    """A connection that has another request as soon as one is parsed."""

    def __init__(self, turns: ConnectionScheduler, principal: Principal | None) -> None:
        self.turns, self.principal, self.count = turns, principal, 0

    def resume(self) -> None:
        self.count += 1
        self.turns.enqueue(self, f"192.0.2.{id(self)}", self.principal)


async def test_strangers_have_a_rate_whatever_they_send_and_nobody_with_a_key_has() -> None:
    loop = asyncio.get_running_loop()
    turns = ConnectionScheduler(lambda: loop.time())
    keyless = [_Pipelining(turns, None) for _ in range(50)]
    known = _Pipelining(turns, OPERATOR)
    with leaping_time(turn_seconds=0.0001):
        for connection in (*keyless, known):
            turns.enqueue(connection, f"192.0.2.{id(connection)}", connection.principal)
        began = loop.time()
        await asyncio.sleep(20 * REST_SECONDS)
        spent = loop.time() - began
    resumed = sum(connection.count for connection in keyless)
    assert MOST < resumed <= MOST * (1 + spent / REST_SECONDS)
    assert max(one.count for one in keyless) - min(one.count for one in keyless) <= 1
    assert known.count > 10 * resumed


async def test_strangers_go_on_when_nobody_else_is_there() -> None:
    turns = ConnectionScheduler()
    keyless = _Pipelining(turns, None)
    turns.enqueue(keyless, "192.0.2.1", None)
    async with asyncio.timeout(30):
        while keyless.count < 5:
            await asyncio.sleep(0)
