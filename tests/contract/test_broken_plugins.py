"""Broken plugins: reported by name and reason, without effect on others."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from gatewayd_hooks.host.errors import BadSettings, LoadFailed
from gatewayd_hooks.strategy import Kind
from tests.contract.plugin_sources import OFFER, SCHEDULER, SOUND, host, row_of

Install = Callable[..., None]

FAULTS = {
    "import error": ("import no_such_module_at_all", "No module named 'no_such_module_at_all'"),
    "syntax error": ("def (", "SyntaxError"),
    "exit at import": ("raise SystemExit(3)", "import of their_module raised SystemExit: 3"),
    "misspelt hook": (
        SCHEDULER + OFFER.format("offer()").replace("schedulers", "schedulerz"),
        "there is no hook gatewayd_schedulerz; did you mean gatewayd_schedulers?",
    ),
    "wrong argument of a hook": (
        SOUND + "\n@hookimpl\ndef gatewayd_stopping(why): ...\n",
        "registration raised PluginValidationError",
    ),
    "no hook": (SCHEDULER, "their_module does not implement gatewayd_schedulers"),
    "hook of another kind": (
        SCHEDULER + OFFER.format("offer()").replace("schedulers", "routers"),
        "their_module does not implement gatewayd_schedulers",
    ),
    "wrong name": (
        SCHEDULER + OFFER.format("offer('yours'), offer('ours')"),
        "their_module offers yours, ours, not mine",
    ),
    "no strategy": (SCHEDULER + OFFER.format(""), "their_module offers nothing, not mine"),
    "not a StrategyInfo": (SCHEDULER + OFFER.format("17"), "their_module offers 17, not mine"),
    "hook raises": (SCHEDULER + OFFER.format("1 / 0"), "gatewayd_schedulers raised ZeroDivision"),
    "hook returns no list": (
        SCHEDULER + OFFER.format("").replace("[]", "7"),
        "gatewayd_schedulers raised TypeError",
    ),
    "build raises": (
        SCHEDULER + OFFER.format("offer(build=lambda config: [][0])"),
        "build raised IndexError: list index out of range",
    ),
    "build exits": (
        SCHEDULER + OFFER.format("offer(build=lambda config: exit(1))"),
        "build raised SystemExit: 1",
    ),
    "methods missing": (
        SCHEDULER + "del Scheduler.plan, Scheduler.close\n" + OFFER.format("offer()"),
        "the strategy that it builds has no close, plan",
    ),
    "odd specifier": (
        SCHEDULER + OFFER.format("offer(requires_spec='one or two')"),
        "requires_spec raised InvalidSpecifier",
    ),
    "no settings": (
        SCHEDULER + OFFER.format("offer(config_type=None)"),
        "its settings raised AttributeError",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_plugin_is_reported_by_name_and_reason(
    install_mine: Callable[[str], None], fault: str
) -> None:
    source, reason = FAULTS[fault]
    install_mine(source)
    plugins = host()
    with pytest.raises(LoadFailed, match=r"^scheduler\.mine cannot be loaded: ") as caught:
        plugins.strategy(Kind.SCHEDULER, "mine", {})
    assert reason in caught.value.reason
    assert "\n" not in caught.value.reason
    row = row_of(plugins, "mine")
    assert (row.state, row.reason) == ("failed", caught.value.reason)


def test_a_broken_plugin_leaves_no_hook_behind(install_mine: Callable[[str], None]) -> None:
    install_mine(
        SOUND
        + "calls = []\n@hookimpl\ndef gatewayd_stopping(reason): raise AssertionError\n"
        + "@hookimpl\ndef gatewayd_stoping(reason): ...\n"
    )
    plugins = host()
    with pytest.raises(LoadFailed, match="gatewayd_stopping"):
        plugins.strategy(Kind.SCHEDULER, "mine", {})
    assert plugins.hook.gatewayd_stopping(reason="test") == []


def test_an_interrupt_at_import_stops_the_daemon(install_mine: Callable[[str], None]) -> None:
    install_mine("raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        host().strategy(Kind.SCHEDULER, "mine", {})


def test_a_plugin_that_failed_may_be_tried_again(install_mine: Callable[[str], None]) -> None:
    install_mine(SOUND)
    plugins = host()
    with pytest.raises(BadSettings):
        plugins.strategy(Kind.SCHEDULER, "mine", {"depth": 0})
    plugins.strategy(Kind.SCHEDULER, "mine", {"depth": 2})
    assert row_of(plugins, "mine").state == "enabled"


def test_an_unknown_kind_is_shown_and_harms_nothing(install: Install) -> None:
    install("later", {"teleporter.beam": "later_module", "scheduler": "later_module"})
    rows = [row for row in host().report() if row.distribution == "later"]
    assert [(row.kind, row.name, row.state) for row in rows] == [
        ("scheduler", "", "unknown"),
        ("teleporter", "beam", "unknown"),
    ]
    assert all("no such kind" in row.reason for row in rows)


def test_a_broken_observer_is_skipped_and_the_others_watch(install: Install) -> None:
    watching = (
        "from gatewayd_hooks.markers import hookimpl\nseen = []\n"
        "@hookimpl\ndef gatewayd_stopping(reason): seen.append(reason)\n"
    )
    install("eye", {"observer.eye": "eye_module"}, {"eye_module": watching})
    install("blind", {"observer.blind": "blind_module"}, {"blind_module": "1 / 0"})
    plugins = host()
    failures = plugins.hooked(Kind.OBSERVER, ["blind", "eye", "aye"])
    assert [(f.kind, f.name) for f in failures] == [("observer", "blind"), ("observer", "aye")]
    assert "ZeroDivisionError" in failures[0].reason
    assert failures[1].reason == "is not installed; did you mean observer.eye?"
    plugins.hook.gatewayd_stopping(reason="done")
    assert sys.modules["eye_module"].seen == ["done"]
    states = {row.name: row.state for row in plugins.report() if row.kind == "observer"}
    assert states == {"blind": "failed", "eye": "enabled"}
