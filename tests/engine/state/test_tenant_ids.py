"""Tenant ids: equal an unbounded dictionary, sized for few tenants."""

from __future__ import annotations

import random

import numpy as np

from gatewayd_engine.state.tenant_ids import Tenants


def test_who_is_kept_keeps_its_number_and_no_two_have_the_same() -> None:
    rng, tenants, known = random.Random(3), Tenants(many=20), dict[str, int]()
    most = 0
    for turn in range(3000):
        name = f"tenant {rng.randrange(turn + 1)}"
        number = tenants.number_of(name)
        assert known.setdefault(name, number) == number
        assert tenants.name(number) == name
        assert sorted(known.values()) == sorted(set(known.values()))
        if tenants.is_due:
            some = rng.sample(sorted(known), rng.randrange(20))
            known = {name: known[name] for name in some}
            numbers = np.array([*known.values(), -1], np.int64)
            tenants.retain_only([numbers[::2], numbers[1::2]])
            assert all(tenants.find(name) == number for name, number in known.items())
            assert tenants.find("tenant of nobody") is None
            most = max(most, len(tenants))
    assert most <= len(tenants) < 60  # of three thousand


def test_a_look_is_worth_it_only_when_there_are_as_many_again() -> None:
    tenants = Tenants(many=10)
    for i in range(11):
        assert not tenants.is_due
        tenants.number_of(f"{i}")
    tenants.retain_only([np.arange(11)])
    for i in range(22):
        assert not tenants.is_due
        tenants.number_of(f"{i}")
    tenants.number_of("one more")
    assert tenants.is_due
