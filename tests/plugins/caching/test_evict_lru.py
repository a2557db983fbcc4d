"""``lru``: equals a list, over a long run."""

import random
import time

import pytest

from gatewayd_evict_lru.strategy import Lru


def test_pages_are_given_up_in_the_order_of_their_release() -> None:
    lru = Lru()
    for page in (3, 1, 2):
        lru.release(page)
    lru.reuse(3)
    lru.release(3)
    assert [lru.victim() for _ in range(3)] == [1, 2, 3]


def test_a_hundred_thousand_operations_agree_with_a_list() -> None:
    draw = random.Random(2)
    lru = Lru()
    order: list[int] = []
    held = list(range(400))
    for _ in range(100_000):
        choice = draw.random()
        if choice < 0.5 and held:
            page = held.pop(draw.randrange(len(held)))
            lru.release(page)
            order.append(page)
        elif choice < 0.75 and order:
            page = order.pop(draw.randrange(len(order)))
            lru.reuse(page)
            held.append(page)
        elif order:
            page = lru.victim()
            assert page == order.pop(0)
            held.append(page)
        else:
            with pytest.raises(LookupError):
                lru.victim()
        assert len(lru) == len(order)


def test_a_victim_costs_the_same_however_many_went_before() -> None:
    """A plain dict would walk over the holes at its beginning: quadratic, minutes here."""
    lru = Lru()
    num_pages = 200_000
    for page in range(num_pages):
        lru.release(page)
    began = time.thread_time()
    for _ in range(num_pages):
        lru.victim()
    assert time.thread_time() - began < 5.0
