"""Who waits for a check: how many, in which order, and only while somebody wants to know."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gatewayd.errors import QueueFull
from gatewayd.guides.line import Line


class Visit:
    """Goes through a line, and notes when its turn comes."""

    def __init__(self, line: Line, chars: int, order: list[int]) -> None:
        self.chars = chars
        self._line, self._order = line, order
        self.task = asyncio.create_task(self._go())

    async def _go(self) -> None:
        await self._line.enter(self.chars)
        self._order.append(self.chars)
        await asyncio.sleep(0)
        self._line.leave()


async def settled() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_the_shortest_and_the_first_take_turns() -> None:
    line, order = Line(lambda: 1), list[int]()
    await line.enter(1)
    visits = [Visit(line, chars, order) for chars in (900, 800, 30, 700, 20, 10)]
    await settled()
    line.leave()
    await asyncio.gather(*(one.task for one in visits))
    # The turn before was a shortest one's.
    assert order == [900, 10, 800, 20, 30, 700]


async def test_who_leaves_is_passed_over_even_at_its_turn() -> None:
    line, order = Line(lambda: 1), list[int]()
    await line.enter(1)
    visits = [Visit(line, chars, order) for chars in (3, 2, 4)]
    await settled()
    visits[0].task.cancel()
    await settled()
    assert len(line) == 2
    line.leave()
    visits[1].task.cancel()  # its turn has come, and it does not know yet
    await asyncio.wait([one.task for one in visits])
    assert order == [4]
    await asyncio.wait_for(line.enter(1), 1)


async def test_its_length_is_bounded_by_number_and_by_letters() -> None:
    line, order = Line(lambda: 1), list[int]()
    await line.enter(1)
    long = [Visit(line, 25_000, order) for _ in range(10)]
    await settled()
    with pytest.raises(QueueFull, match=r"250,000 characters wait .* the limit is 262,144") as full:
        await line.enter(25_000)
    assert full.value.retry_after == 1
    short = [Visit(line, 100, order) for _ in range(246)]
    await settled()
    with pytest.raises(QueueFull, match=r"256 grammars wait .* the limit is 256"):
        await line.enter(100)
    line.leave()
    await asyncio.gather(*(one.task for one in long + short))
    assert len(order) == 256


async def test_more_may_go_when_the_configuration_says_so() -> None:
    most = [1]
    line, order = Line(lambda: most[0]), list[int]()
    visits: list[Any] = []
    await line.enter(1)
    visits.append(Visit(line, 5, order))
    await settled()
    assert order == []
    most[0] = 2
    visits.append(Visit(line, 6, order))
    await asyncio.gather(*(one.task for one in visits))
    assert sorted(order) == [5, 6]
