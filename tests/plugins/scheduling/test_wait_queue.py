"""Wait queue: equals a list sorted each time."""

import random

from gatewayd_hooks.helpers.waiting import WaitingLine


def test_slots_come_out_in_order_of_arrival_with_the_returned_first() -> None:
    line = WaitingLine()
    line.enter(1, 10.0, front=False)
    line.enter(2, 5.0, front=False)
    line.enter(3, 20.0, front=True)
    line.enter(4, 15.0, front=True)
    assert list(line) == [4, 3, 2, 1]


def test_equal_arrivals_keep_the_order_in_which_they_entered() -> None:
    line = WaitingLine()
    for slot in (7, 3, 5):
        line.enter(slot, 1.0, front=False)
    assert list(line) == [7, 3, 5]


def test_entering_twice_moves_and_leaving_twice_is_said() -> None:
    line = WaitingLine()
    line.enter(1, 1.0, front=False)
    line.enter(2, 2.0, front=False)
    line.enter(2, 2.0, front=True)
    assert (list(line), len(line)) == ([2, 1], 2)
    assert line.leave(2)
    assert not line.leave(2)
    assert list(line) == [1]


def test_a_long_run_agrees_with_sorting() -> None:
    draw = random.Random(1)
    line = WaitingLine()
    model: dict[int, tuple[bool, float, int]] = {}
    for number in range(20_000):
        slot = draw.randrange(200)
        if draw.random() < 0.6:
            entry = (draw.random() < 0.8, float(draw.randrange(50)), number)
            line.enter(slot, entry[1], front=not entry[0])
            model[slot] = entry
        else:
            assert line.leave(slot) == (model.pop(slot, None) is not None)
        if number % 50 == 0:
            assert list(line) == sorted(model, key=model.__getitem__)
            assert len(line) == len(model)


def test_it_knows_who_came_back() -> None:
    line = WaitingLine()
    line.enter(1, 5.0, front=False)
    line.enter(2, 6.0, front=True)
    assert (line.is_front(1), line.is_front(2)) == (False, True)
