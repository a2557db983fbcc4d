"""Plugins are loaded by name, one at a time, and none can hurt the others."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from gatewayd_hooks import loading
from gatewayd_hooks.catalog import Catalog
from gatewayd_hooks.errors import BadSettings, Conflict, LoadFailed, NotInstalled, SpecMismatch
from gatewayd_hooks.loading import PluginHost, PluginRow
from gatewayd_hooks.strategy import Kind
from gatewayd_hooks.version import SPEC_VERSION

SCHEDULER = """
from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyConfig, StrategyInfo, setting

class Config(StrategyConfig):
    depth: int = setting(1, reload="hot", ge=1, le=8, doc="How deep.")
    password: str = setting("", reload="secret", max_length=4, doc="What opens.")

class Scheduler:
    def __init__(self, config): self.config = config
    def open(self, resources): raise AssertionError("nobody asked to open it")
    def close(self): ...
    def enqueue(self, slot, view, *, front): ...
    def dequeue(self, slot): ...
    def plan(self, view): ...

def offer(name="mine", build=Scheduler, config_type=Config, **more):
    return StrategyInfo(
        name=name, config_type=config_type, build=build, summary="A scheduler.", **more
    )

"""
OFFER = """
@hookimpl
def gatewayd_schedulers():
    return [{}]
"""
SOUND = SCHEDULER + OFFER.format("offer()")
Install = Callable[..., None]


@pytest.fixture
def install_mine(install: Install) -> Callable[[str], None]:
    """Install ``scheduler.mine`` with a given source."""

    def install_(source: str) -> None:
        install("their-dist", {"scheduler.mine": "their_module"}, {"their_module": source})

    return install_


def host() -> PluginHost:
    return PluginHost(Catalog.installed())


def row_of(plugins: PluginHost, name: str) -> PluginRow:
    (row,) = [row for row in plugins.report() if row.name == name]
    return row


def test_what_is_not_named_is_never_imported(install: Install) -> None:
    install("trap", {"scheduler.trap": "trap_module"}, {"trap_module": "raise SystemExit('boo')"})
    install("sound", {"scheduler.mine": "sound_module"}, {"sound_module": SOUND})
    plugins = host()
    plugins.strategy(Kind.SCHEDULER, "mine", {})
    assert row_of(plugins, "trap").state == "installed"
    assert "trap_module" not in sys.modules


def test_a_strategy_is_built_with_its_settings_and_not_opened(
    install_mine: Callable[[str], None],
) -> None:
    install_mine(SOUND)
    plugins = host()
    assert row_of(plugins, "mine") == PluginRow(
        "scheduler", "mine", "their-dist", "1.0", "installed", "", ""
    )
    strategy = plugins.strategy(Kind.SCHEDULER, "mine", {"depth": 3})
    assert strategy.config.depth == 3
    assert row_of(plugins, "mine") == PluginRow(
        "scheduler", "mine", "their-dist", "1.0", "enabled", "A scheduler.", ""
    )


def test_every_strategy_is_an_object_of_its_own(install_mine: Callable[[str], None]) -> None:
    install_mine(SOUND)
    plugins = host()
    first, second = (plugins.strategy(Kind.SCHEDULER, "mine", {}) for _ in range(2))
    assert first is not second


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
        "what it builds has no close, plan",
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


def test_a_strategy_of_another_contract_is_refused_in_one_sentence(
    install_mine: Callable[[str], None],
) -> None:
    install_mine(SCHEDULER + OFFER.format("offer(requires_spec='>=2,<3')"))
    with pytest.raises(SpecMismatch) as caught:
        host().strategy(Kind.SCHEDULER, "mine", {})
    assert str(caught.value) == (
        f"scheduler.mine needs plugin contract >=2,<3, but this gatewayd has {SPEC_VERSION}"
    )


@pytest.mark.parametrize(
    ("spec_version", "fits"), [("1.0", True), ("1.7.dev3", True), ("2.0", False), ("0.9", False)]
)
def test_every_minor_version_and_its_prereleases_fit_the_usual_range(
    install_mine: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    spec_version: str,
    fits: bool,
) -> None:
    monkeypatch.setattr(loading, "SPEC_VERSION", spec_version)
    install_mine(SOUND)
    if fits:
        assert host().info(Kind.SCHEDULER, "mine").name == "mine"
    else:
        with pytest.raises(SpecMismatch, match=spec_version):
            host().info(Kind.SCHEDULER, "mine")


BAD_SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "too large": (
        {"depth": 9},
        "[scheduler.mine] depth is 9: it should be less than or equal to 8",
    ),
    "wrong type": (
        {"depth": "deep"},
        "[scheduler.mine] depth is 'deep': it should be a valid integer, "
        "unable to parse string as an integer",
    ),
    "misspelt": ({"deptj": 2}, "[scheduler.mine] deptj is unknown; did you mean depth?"),
    "unknown": ({"x": 2}, "[scheduler.mine] x is unknown; there is depth, password"),
    "secret": (
        {"password": "sesame"},
        "[scheduler.mine] password is not allowed: String should have at most 4 characters",
    ),
    "two": (
        {"depth": 0, "y": 1},
        "[scheduler.mine] depth is 0: it should be greater than or equal to 1; "
        "[scheduler.mine] y is unknown; there is depth, password",
    ),
}


@pytest.mark.parametrize("case", BAD_SETTINGS)
def test_bad_settings_name_the_key_the_value_and_the_limit(
    install_mine: Callable[[str], None], case: str
) -> None:
    settings, message = BAD_SETTINGS[case]
    install_mine(SOUND)
    plugins = host()
    with pytest.raises(BadSettings) as caught:
        plugins.strategy(Kind.SCHEDULER, "mine", settings)
    assert str(caught.value) == message
    assert "sesame" not in str(caught.value)
    assert row_of(plugins, "mine").state == "failed"


def test_a_plugin_that_failed_may_be_tried_again(install_mine: Callable[[str], None]) -> None:
    install_mine(SOUND)
    plugins = host()
    with pytest.raises(BadSettings):
        plugins.strategy(Kind.SCHEDULER, "mine", {"depth": 0})
    plugins.strategy(Kind.SCHEDULER, "mine", {"depth": 2})
    assert row_of(plugins, "mine").state == "enabled"


def test_two_owners_of_a_name_stop_only_who_chooses_it(install: Install) -> None:
    install("red", {"scheduler.mine": "red_module"}, {"red_module": SOUND}, version="2.1")
    install("blue", {"scheduler.mine": "blue_module"}, {"blue_module": SOUND})
    yours = SCHEDULER + OFFER.format("offer('yours')")
    install("other", {"scheduler.yours": "other_module"}, {"other_module": yours})
    plugins = host()
    plugins.strategy(Kind.SCHEDULER, "yours", {})
    rows = [row for row in plugins.report() if row.name == "mine"]
    assert [(row.distribution, row.state, row.reason) for row in rows] == [
        ("blue", "conflict", "also offered by red 2.1"),
        ("red", "conflict", "also offered by blue 1.0"),
    ]
    with pytest.raises(Conflict) as caught:
        plugins.strategy(Kind.SCHEDULER, "mine", {})
    assert str(caught.value) == (
        "scheduler.mine is offered by blue 1.0 and red 2.1; uninstall all but one"
    )
    assert not {"red_module", "blue_module"} & set(sys.modules)


def test_one_module_may_stand_behind_several_names(install: Install) -> None:
    source = SCHEDULER + OFFER.format("offer('a'), offer('b')")
    entries = {"scheduler.a": "pair_module", "scheduler.b": "pair_module"}
    install("pair", entries, {"pair_module": source})
    plugins = host()
    names = [plugins.info(Kind.SCHEDULER, name).name for name in "ab"]
    assert names == ["a", "b"]


def test_a_plugin_is_asked_alone_whatever_others_offer_under_its_name(install: Install) -> None:
    greedy = SCHEDULER + OFFER.format("offer('red'), offer('blue')")
    install("red", {"scheduler.red": "red_module"}, {"red_module": greedy})
    own = SCHEDULER + OFFER.format("offer('blue')")
    install("blue", {"scheduler.blue": "blue_module"}, {"blue_module": own})
    install("none", {"scheduler.none": "none_module"}, {"none_module": SCHEDULER})
    plugins = host()
    plugins.strategy(Kind.SCHEDULER, "red", {})
    assert type(plugins.strategy(Kind.SCHEDULER, "blue", {})).__module__ == "blue_module"
    with pytest.raises(LoadFailed, match="none_module does not implement gatewayd_schedulers"):
        plugins.strategy(Kind.SCHEDULER, "none", {})


def test_an_entry_point_may_name_an_object_in_a_module(install: Install) -> None:
    body = "\n".join("    " + line for line in OFFER.format("offer()").splitlines())
    source = SCHEDULER + "class Plugin:" + body.replace("schedulers()", "schedulers(self)")
    source += "\nplugin = Plugin()\n"
    install("object", {"scheduler.mine": "object_module:plugin"}, {"object_module": source})
    assert host().info(Kind.SCHEDULER, "mine").name == "mine"


def test_what_is_not_installed_is_said_with_the_nearest_name(
    install_mine: Callable[[str], None],
) -> None:
    install_mine(SOUND)
    with pytest.raises(NotInstalled) as caught:
        host().strategy(Kind.SCHEDULER, "mime", {})
    assert str(caught.value) == "scheduler.mime is not installed; did you mean scheduler.mine?"


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
    failures = plugins.observers(["blind", "eye", "aye"])
    assert [(f.kind, f.name) for f in failures] == [("observer", "blind"), ("observer", "aye")]
    assert "ZeroDivisionError" in failures[0].reason
    assert failures[1].reason == "is not installed; did you mean observer.eye?"
    plugins.hook.gatewayd_stopping(reason="done")
    assert sys.modules["eye_module"].seen == ["done"]
    states = {row.name: row.state for row in plugins.report() if row.kind == "observer"}
    assert states == {"blind": "failed", "eye": "enabled"}
