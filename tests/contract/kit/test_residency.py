"""Residency conformance: rejects strategies that unload what they must not, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gatewayd_hooks.strategy import Kind
from gatewayd_hooks.targets.residency import ResidentModel
from gatewayd_hooks.testing.targets.residency import ResidencyConformance

Verdict = Callable[..., list[str]]
Catches = Callable[..., bool]


@pytest.mark.parametrize("name", ["lru", "cost", "schedule"])
def test_a_sound_one_passes(verdict: Verdict, name: str) -> None:
    assert verdict(ResidencyConformance, Kind.RESIDENCY, name) == []


# Each of these breaks one rule of a sound strategy, which is changed in place.


def evicts_the_wanted_model(residency: Any) -> None:
    residency.evict = lambda wanted, models, unix: wanted


def sorts_what_it_is_given(residency: Any) -> None:
    def broken(wanted: str, models: list[ResidentModel], unix: float) -> str:
        models.sort(key=lambda model: model.memory)
        return models[0].name

    residency.evict = broken


def keeps_the_last_model(residency: Any) -> None:
    evict = residency.evict
    residency.evict = lambda wanted, models, unix: (
        evict(wanted, models, unix) if len(models) > 1 else ""
    )


def prefers_models_twice(residency: Any) -> None:
    residency.preferred = lambda unix: ["a", "a"]


@pytest.mark.parametrize(
    "broken",
    [evicts_the_wanted_model, sorts_what_it_is_given, keeps_the_last_model, prefers_models_twice],
)
def test_a_broken_one_fails(catches: Catches, broken: Callable[[Any], None]) -> None:
    assert catches(ResidencyConformance, Kind.RESIDENCY, "lru", broken)
