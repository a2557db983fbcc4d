"""Readiness of a catalogue: which models are waited for at the start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gatewayd.catalogue.catalogue import Catalogue
from gatewayd.catalogue.target import ModelTarget
from gatewayd.engines.api import ReplicaState, ReplicaStatus
from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import FakeFleet, model_info
from tests.gatewayd.one_model import model_metrics


class LoadingFleet(FakeFleet):
    """A fleet that sleeps, is loaded, becomes ready, or fails."""

    def __init__(self, state: ReplicaState) -> None:
        super().__init__()
        self.model = None
        self.set(state)

    def set(self, state: ReplicaState) -> None:
        self.state = state
        self.is_ready = state in (ReplicaState.READY, ReplicaState.UNLOADED)
        if state is ReplicaState.READY:
            self.model = model_info()

    @property
    def condition(self) -> str:
        return "asleep" if self.state is ReplicaState.UNLOADED else super().condition

    def status(self) -> Sequence[ReplicaStatus]:
        return [replace(super().status()[0], state=self.state)]


ASLEEP, LOADS, READY = ReplicaState.UNLOADED, ReplicaState.STARTING, ReplicaState.READY


def catalogue_of(text: TextModel, *states: ReplicaState) -> tuple[Catalogue, list[LoadingFleet]]:
    fleets = [LoadingFleet(state) for state in states]
    targets = [target_of(text, f"m{at}", fleet) for at, fleet in enumerate(fleets)]
    return Catalogue(targets), fleets


def target_of(text: TextModel, name: str, fleet: LoadingFleet) -> ModelTarget:
    return ModelTarget(names=(name,), fleet=fleet, text=text, metrics=model_metrics(fleet, name))


def seen(catalogue: Catalogue) -> tuple[bool, str]:
    return catalogue.is_ready, catalogue.condition


def test_a_sleeping_model_does_not_make_the_others_ready(text: TextModel) -> None:
    catalogue, (first, second, _) = catalogue_of(text, LOADS, LOADS, ASLEEP)
    assert seen(catalogue) == (False, "not_ready")
    second.set(READY)
    assert seen(catalogue) == (False, "not_ready")
    first.set(ReplicaState.RESTARTING)  # its first engine failed, and another is started
    assert seen(catalogue) == (False, "not_ready")
    first.set(READY)
    assert seen(catalogue) == (True, "ready")
    first.set(ReplicaState.RESTARTING)  # lost later
    assert seen(catalogue) == (True, "degraded")


def test_a_model_that_has_failed_is_not_waited_for(text: TextModel) -> None:
    catalogue, (first, _) = catalogue_of(text, LOADS, READY)
    assert seen(catalogue) == (False, "not_ready")
    first.set(ReplicaState.FAILED)
    assert seen(catalogue) == (True, "degraded")


def test_a_model_that_a_request_loads_later_is_not_waited_for(text: TextModel) -> None:
    catalogue, (_, second) = catalogue_of(text, READY, ASLEEP)
    catalogue.find("m1")  # as the request does, before any probe
    second.set(LOADS)
    assert seen(catalogue) == (True, "degraded")


def test_a_request_during_the_start_delays_it_by_no_further_model(text: TextModel) -> None:
    catalogue, (first, second, _) = catalogue_of(text, LOADS, ASLEEP, READY)
    catalogue.find("m1")
    second.set(LOADS)
    catalogue.add(target_of(text, "added", LoadingFleet(LOADS)))
    assert seen(catalogue) == (False, "not_ready")
    first.set(READY)
    assert seen(catalogue) == (True, "degraded")


def test_a_removed_model_is_not_waited_for(text: TextModel) -> None:
    catalogue, _ = catalogue_of(text, READY, LOADS)
    assert not catalogue.is_ready
    catalogue.remove(catalogue.targets[1])
    assert seen(catalogue) == (True, "ready")


def test_one_model_alone_is_what_its_engines_are(text: TextModel) -> None:
    catalogue, (only,) = catalogue_of(text, LOADS)
    for state in (
        LOADS,
        ReplicaState.RESTARTING,
        ReplicaState.FAILED,
        READY,
        ReplicaState.RESTARTING,
    ):
        only.set(state)
        assert seen(catalogue) == (only.is_ready, only.condition)
