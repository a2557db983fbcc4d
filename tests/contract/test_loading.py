"""Plugin loading: by name, one at a time, with valid settings and contract version."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gatewayd_hooks.host import loading
from gatewayd_hooks.host.catalog import Entry
from gatewayd_hooks.host.errors import (
    BadSettings,
    DuplicatePlugin,
    LoadFailed,
    NotInstalled,
    SpecMismatch,
)
from gatewayd_hooks.host.loading import PluginRow
from gatewayd_hooks.strategy import Kind
from gatewayd_hooks.version import SPEC_VERSION
from tests.contract.plugin_sources import OFFER, SCHEDULER, SOUND, host, row_of

Install = Callable[..., None]


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


def test_threads_that_want_the_same_plugin_at_once_all_get_it(
    install_mine: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    install_mine(SOUND)
    plugins, both = host(), threading.Barrier(2)
    load = Entry.load

    def together(entry: Entry) -> Any:
        both.wait(30)
        return load(entry)

    monkeypatch.setattr(Entry, "load", together)
    with ThreadPoolExecutor(2) as pool:
        made = [pool.submit(plugins.strategy, Kind.SCHEDULER, "mine", {}) for _ in range(2)]
    assert [one.result().config.depth for one in made] == [1, 1]
    assert row_of(plugins, "mine").state == "enabled"


def test_a_thread_whose_plugin_does_not_come_back_keeps_no_other_from_its_own(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("slow", {"scheduler.slow": "slow_module"}, {"slow_module": SOUND})
    install("sound", {"scheduler.mine": "sound_module"}, {"sound_module": SOUND})
    plugins, may_load, loads = host(), threading.Event(), threading.Event()
    load = Entry.load

    def slowly(entry: Entry) -> Any:
        if entry.name == "slow":
            loads.set()
            may_load.wait()
        return load(entry)

    monkeypatch.setattr(Entry, "load", slowly)
    with ThreadPoolExecutor(2) as pool:
        stuck = pool.submit(plugins.strategy, Kind.SCHEDULER, "slow", {})
        assert loads.wait(30)
        try:
            assert pool.submit(plugins.strategy, Kind.SCHEDULER, "mine", {}).result(30)
        finally:
            may_load.set()
        assert isinstance(stuck.exception(), LoadFailed)  # it offers "mine"


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
    "unknown": ({"x": 2}, "[scheduler.mine] x is unknown; known settings: depth, password"),
    "secret": (
        {"password": "sesame"},
        "[scheduler.mine] password is not allowed: String should have at most 4 characters",
    ),
    "two": (
        {"depth": 0, "y": 1},
        "[scheduler.mine] depth is 0: it should be greater than or equal to 1; "
        "[scheduler.mine] y is unknown; known settings: depth, password",
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
    with pytest.raises(DuplicatePlugin) as caught:
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
