"""Preemption conformance: rejects the wrong victim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gatewayd_hooks.preemption import PreemptionMode, Victim
from gatewayd_hooks.scheduling import QueueView
from gatewayd_hooks.strategy import Kind
from gatewayd_hooks.testing.preemption import PreemptionConformance

Verdict = Callable[..., list[str]]
Catches = Callable[..., bool]


def test_a_sound_one_passes(verdict: Verdict) -> None:
    assert verdict(PreemptionConformance, Kind.PREEMPTION, "recompute") == []


# Each of these breaks one rule of a sound strategy, which is changed in place.


def any_that_runs(preemption: Any) -> None:
    preemption.victim = lambda view, candidates: Victim(
        int(view.running[-1]), PreemptionMode.RECOMPUTE
    )


def a_place_instead_of_a_slot(preemption: Any) -> None:
    preemption.victim = lambda view, candidates: Victim(
        len(candidates) - 1, PreemptionMode.RECOMPUTE
    )


def a_mode_that_is_not_there(preemption: Any) -> None:
    victim = preemption.victim
    preemption.victim = lambda view, candidates: victim(view, candidates)._replace(mode="burn")


def sorts_the_queue(preemption: Any) -> None:
    victim = preemption.victim

    def broken(view: QueueView, candidates: Any) -> Any:
        view.running.sort()
        return victim(view, candidates)

    preemption.victim = broken


@pytest.mark.parametrize(
    "broken", [any_that_runs, a_place_instead_of_a_slot, a_mode_that_is_not_there, sorts_the_queue]
)
def test_a_broken_one_fails(catches: Catches, broken: Callable[[Any], None]) -> None:
    assert catches(PreemptionConformance, Kind.PREEMPTION, "recompute", broken)
