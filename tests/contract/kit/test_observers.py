"""Observer conformance: rejects observers that a daemon would drop, or that disturb metrics."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import Counter

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.testing.observing import ObserverConformance


class Sound:
    ends: list[str]

    def __init__(self) -> None:
        self.ends = []

    @hookimpl
    def gatewayd_request_finished(self, event: Any) -> None:
        self.ends.append(event.outcome)


class HasNoHook:
    def gatewayd_request_finished(self, event: Any) -> None:
        """Not marked."""


class HasAStrangeHook(Sound):
    @hookimpl
    def gatewayd_request_finnished(self, event: Any) -> None:
        """Misspelt."""


class NeedsATimeToFirstToken:
    @hookimpl
    def gatewayd_request_finished(self, event: Any) -> None:
        str(round(event.ttft_seconds))


class TakesAStrangersName:
    @hookimpl
    def gatewayd_metrics(self, registry: Any) -> None:
        Counter("requests", "Anybody's.", registry=registry)


class OffersAStrategyToo(Sound):
    @hookimpl
    def gatewayd_routers(self) -> list[Any]:
        return []


def failures(observer: object) -> list[str]:
    class Case(ObserverConformance):
        def make(self) -> object:
            return observer

    failed = []
    for name in vars(ObserverConformance):
        if name.startswith("test_"):
            try:
                getattr(Case(), name)()
            except Exception:  # noqa: BLE001 - whatever it raises, it failed
                failed.append(name)
    return failed


def test_a_sound_one_passes_and_is_told() -> None:
    observer = Sound()
    assert failures(observer) == []
    assert observer.ends == ["stop", "length", "abort", "error"]


@pytest.mark.parametrize(
    "kind",
    [
        HasNoHook,
        HasAStrangeHook,
        NeedsATimeToFirstToken,
        TakesAStrangersName,
        OffersAStrategyToo,
    ],
)
def test_a_broken_one_fails(kind: type) -> None:
    assert failures(kind())
