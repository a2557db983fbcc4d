"""Gateway plugins: loaded by name, told about requests, fenced."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest

from gatewayd.config.chosen_strategies import enabled
from gatewayd.config.load import load
from gatewayd.plugins.fenced import FAULT_LIMIT
from gatewayd.plugins.loaded import LoadedPlugins, check_strategies
from gatewayd_hooks.events import RequestAdmitted
from gatewayd_hooks.host.budgets import PATIENCE
from gatewayd_hooks.host.catalog import Catalog, Entry
from gatewayd_hooks.host.loading import PluginError
from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyConfig, StrategyInfo
from tests.clock import Clock

EVENT = RequestAdmitted("r1", "", "/v1/completions", 3, 1)


class _Strategy:
    """Stands for an admission, a router, an executor and a protocol; notes its life."""

    def __init__(self) -> None:
        self.life: list[str] = []

    def open(self, resources: Any) -> None:
        self.life.append(f"open {resources.model} {resources.num_replicas}")

    def close(self) -> None:
        self.life.append("close")

    def admit(self, request: Any, load: Any) -> None:
        return None

    def began(self, request: Any, load: Any, seconds: float) -> None:
        raise OSError

    def route(self, request: Any, replicas: Sequence[Any]) -> int:
        return 0

    def start(self, command: Any) -> Any:
        raise OSError

    def routes(self, gateway: Any) -> Sequence[Any]:
        return []

    def error(self, refusal: Any, request_id: str) -> Any:
        raise OSError

    late_error = error


class _Settings(StrategyConfig):
    depth: int = 1


def _module(name: str, **members: object) -> Entry:
    module = ModuleType(f"plug_{name}")
    vars(module).update(members)
    sys.modules[module.__name__] = module
    return Entry("", name, "test", "1", module.__name__)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> dict[str, _Strategy]:
    """A catalog of an admission, a router, an executor, a protocol, observers; what was built."""
    built: dict[str, _Strategy] = {}

    def offer(name: str) -> Any:
        def build(config: _Settings) -> _Strategy:
            return built.setdefault(name, _Strategy())

        return lambda: [StrategyInfo(name, _Settings, build, "for tests")]

    def heard(events: list[Any]) -> Any:
        @hookimpl
        def gatewayd_request_admitted(event: Any) -> None:
            events.append(event)

        return gatewayd_request_admitted

    @hookimpl
    def raises(event: Any) -> None:
        EVENTS.append(event)
        raise RuntimeError("boom")

    @hookimpl
    def hangs(event: Any) -> None:
        EVENTS.append(event)
        time.sleep(60)

    @hookimpl
    def sleeps(event: Any) -> None:
        EVENTS.append(event)
        CLOCK.wait(0.2)

    @hookimpl
    def starves(event: Any) -> None:
        EVENTS.append(event)
        CLOCK.spend(0.02)
        CLOCK.wait(0.18)  # others have the processor

    def named(function: Any, name: str) -> Any:
        function.__name__ = name
        return hookimpl(function)

    EVENTS.clear()
    entries = [
        ("admission", "a", {"gatewayd_admissions": named(offer("a"), "gatewayd_admissions")}),
        ("router", "r", {"gatewayd_routers": named(offer("r"), "gatewayd_routers")}),
        ("executor", "e", {"gatewayd_executors": named(offer("e"), "gatewayd_executors")}),
        ("protocol", "p", {"gatewayd_protocols": named(offer("p"), "gatewayd_protocols")}),
        ("observer", "listens", {"gatewayd_request_admitted": heard(EVENTS)}),
        ("observer", "raises", {"gatewayd_request_admitted": raises}),
        ("observer", "hangs", {"gatewayd_request_admitted": hangs}),
        ("observer", "sleeps", {"gatewayd_request_admitted": sleeps}),
        ("observer", "starves", {"gatewayd_request_admitted": starves}),
        ("observer", "misspelt", {"gatewayd_request_admited": named(offer("x"), "x")}),
    ]
    catalog = Catalog(
        Entry(kind, name, "test", "1", _module(name, **members).module)
        for kind, name, members in entries
    )
    monkeypatch.setattr(Catalog, "installed", classmethod(lambda cls: catalog))
    return built


EVENTS: list[Any] = []
CLOCK = Clock()


def _config(*observers: str, **flags: Any) -> Any:
    settings = {
        "admission.strategy": "a",
        "router.strategy": "r",
        "executor.strategy": "e",
        **flags,
    }
    settings = {"protocol.strategies": ["p"], **settings}
    settings |= {"logits_processor.strategies": []}  # none is installed
    return load(None, settings | {"plugins.observers": list(observers)}, {}).config


def test_strategies_are_opened_and_closed(built: dict[str, _Strategy]) -> None:
    plugged = LoadedPlugins.load(_config(**{"engine.replicas": 3}), model="m")
    plugged.close()
    assert sorted(built) == ["a", "e", "p", "r"]
    assert all(strategy.life == ["open m 3", "close"] for strategy in built.values())


def test_a_protocol_that_cannot_be_opened_is_an_error_with_its_name(
    built: dict[str, _Strategy], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(strategy: _Strategy, resources: Any) -> None:
        if strategy is built.get("p"):
            raise OSError("no such folder")

    monkeypatch.setattr(_Strategy, "open", broken)
    with pytest.raises(PluginError, match=r"protocol\.p cannot be opened: OSError: no such folder"):
        LoadedPlugins.load(_config(), model="m")
    assert built["r"].life == built["e"].life == built["p"].life == ["close"]


def test_a_strategy_that_is_not_installed_is_an_error_with_its_name(
    built: dict[str, _Strategy],
) -> None:
    with pytest.raises(PluginError, match=r"router\.other is not installed"):
        LoadedPlugins.load(_config(**{"router.strategy": "other"}), model="m")


def test_observers_are_told_and_installed_is_not_enabled(built: dict[str, _Strategy]) -> None:
    LoadedPlugins.load(_config(), model="m").observers.admitted(EVENT)
    assert EVENTS == []
    LoadedPlugins.load(_config("listens"), model="m").observers.admitted(EVENT)
    assert EVENTS == [EVENT]


def test_an_observer_that_raises_reaches_no_request_and_is_told_no_more(
    built: dict[str, _Strategy], caplog: pytest.LogCaptureFixture
) -> None:
    observers = LoadedPlugins.load(_config("raises"), model="m").observers
    for _ in range(FAULT_LIMIT + 5):
        observers.admitted(EVENT)
    assert len(EVENTS) == FAULT_LIMIT
    assert "boom" in caplog.text


def test_an_observer_that_hangs_is_interrupted_and_told_no_more(
    built: dict[str, _Strategy], caplog: pytest.LogCaptureFixture
) -> None:
    config = _config("hangs", "listens", **{"engine.strategy_hang_seconds": 0.4})
    observers = LoadedPlugins.load(config, model="m").observers
    began = time.monotonic()
    for _ in range(FAULT_LIMIT + 5):
        observers.admitted(EVENT)
    assert time.monotonic() - began < 30
    assert len(EVENTS) == FAULT_LIMIT + (FAULT_LIMIT + 5)
    assert "observer: plug_hangs.gatewayd_request_admitted hung at" in caplog.text
    assert "observer plug_hangs disabled for" in caplog.text


@pytest.mark.parametrize(("name", "is_told"), [("sleeps", False), ("starves", True)])
def test_an_observer_that_is_slow_itself_is_told_no_more(
    built: dict[str, _Strategy], monkeypatch: pytest.MonkeyPatch, name: str, is_told: bool
) -> None:
    monkeypatch.setattr("gatewayd_hooks.host.plugin_times.time", CLOCK)
    monkeypatch.setattr("gatewayd.plugins.fenced.time", CLOCK)
    observers = LoadedPlugins.load(_config(name), model="m").observers
    for _ in range(100):
        observers.admitted(EVENT)
    assert len(EVENTS) == (100 if is_told else FAULT_LIMIT * PATIENCE)


def test_an_observer_that_raises_keeps_no_event_from_the_others(
    built: dict[str, _Strategy],
) -> None:
    for order in (("raises", "listens"), ("listens", "raises")):
        EVENTS.clear()
        observers = LoadedPlugins.load(_config(*order), model="m").observers
        for _ in range(FAULT_LIMIT + 5):
            observers.admitted(EVENT)
        assert len(EVENTS) == FAULT_LIMIT + (FAULT_LIMIT + 5)


def test_an_observer_that_cannot_be_loaded_is_left_out_and_reported(
    built: dict[str, _Strategy], caplog: pytest.LogCaptureFixture
) -> None:
    LoadedPlugins.load(_config("misspelt", "listens"), model="m").observers.admitted(EVENT)
    assert EVENTS == [EVENT]
    assert "observer misspelt not loaded" in caplog.text


def test_checking_builds_nothing_and_tells_every_problem(built: dict[str, _Strategy]) -> None:
    problems = check_strategies(_config("misspelt", **{"router.r.dept": 3}))
    assert built == {}
    assert any("dept is unknown; did you mean depth?" in problem for problem in problems)
    assert any("misspelt" in problem for problem in problems)
    assert any("scheduler.fcfs is not installed" in problem for problem in problems)


def test_what_multiplies_is_checked_as_what_quantizes_is() -> None:
    config = _config(**{"quantizer.kernels": ["hummig", "auto"], "quantizer.strategy": "none"})
    problems = check_strategies(config)
    assert any("quantizer.hummig is not installed; did you mean" in one for one in problems)
    assert any("quantizer.auto is not installed" in one for one in problems)
    assert {"quantizer.hummig", "quantizer.auto"} <= enabled(config)
    assert "quantizer.none" not in enabled(config)
