"""Console conformance: rejects panels and actions that cannot be shown or mislead."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from gatewayd.tracing.causes import CAUSES
from gatewayd.wire.snapshot import Snapshot
from gatewayd_hooks.console import Action, AdminCalls, Look, Panel, Refused, Rows
from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.testing.console import ConsoleConformance
from gatewayd_hooks.testing.looks import busy_look, idle_look


def ids_of(look: Look) -> Rows:
    return Rows(["id", "ms"], [[row["id"], row["age_ms"]] for row in look["waiting"]])


def pause(admin: AdminCalls) -> str:
    admin.call("POST", "/admin/pause", {})
    return "admission is paused"


class Sound:
    panels: Sequence[Panel] = (Panel("ids", "Ids", ids_of, "f6"),)
    actions: Sequence[Action] = (Action("pause", "Pause", pause, is_destructive=True),)

    @hookimpl
    def gatewayd_console_panels(self) -> Sequence[Panel]:
        return self.panels

    @hookimpl
    def gatewayd_console_actions(self) -> Sequence[Action]:
        return self.actions


def panel(show: Any) -> type[Sound]:
    return type("Broken", (Sound,), {"panels": [Panel("one", "One", show)]})


def action(run: Any) -> type[Sound]:
    return type("Broken", (Sound,), {"actions": [Action("one", "One", run, is_destructive=False)]})


class HasNoHook:
    def gatewayd_console_panels(self) -> list[Panel]:
        return []


class HasAStrangeHook(Sound):
    @hookimpl
    def gatewayd_console_pannels(self) -> list[Panel]:
        return []


class OffersAStrategyToo(Sound):
    @hookimpl
    def gatewayd_routers(self) -> list[Any]:
        return []


class AddsNothing(Sound):
    panels = ()
    actions = ()


class TakesAnIdTwice(Sound):
    panels = (Panel("ids", "Ids", ids_of), Panel("ids", "Ids again", ids_of))


class TakesAKeyTwice(Sound):
    actions = (Action("pause", "Pause", pause, is_destructive=True, key="f6"),)


def sorts_in_place(look: Any) -> Rows:
    look["waiting"].sort(key=lambda row: row["id"], reverse=True)
    return ids_of(look)


def hides_a_refusal(admin: AdminCalls) -> str:
    with contextlib.suppress(Refused):
        admin.call("POST", "/admin/pause", {})
    return "done"


BROKEN = {
    "no hook": HasNoHook,
    "strange hook": HasAStrangeHook,
    "strategy": OffersAStrategyToo,
    "nothing": AddsNothing,
    "id twice": TakesAnIdTwice,
    "key twice": TakesAKeyTwice,
    "needs a request": panel(lambda look: [look["waiting"][0]["id"]]),
    "needs a number": panel(lambda look: [str(round(look["latencies"][0]["p50"]))]),
    "changes the look": panel(sorts_in_place),
    "one string": panel(lambda look: "all is well"),
    "no strings": panel(lambda look: [1, 2]),
    "ragged": panel(lambda look: Rows(["id"], [["a", 1]])),
    "rows alike": panel(lambda look: Rows(["t"], [[row["tenant"]] for row in look["waiting"]])),
    "says nothing": action(lambda admin: None),
    "strange route": action(lambda admin: admin.call("POST", "/v1/completions")),
    "hides a refusal": action(hides_a_refusal),
}


def failures(plugin: Any) -> list[str]:
    class Case(ConsoleConformance):
        def make(self) -> Any:
            return plugin

    failed = []
    for name in vars(ConsoleConformance):
        if not name.startswith("test_"):
            continue
        test = getattr(Case(), name)
        looks = [[idle_look()], [busy_look()]] if inspect.signature(test).parameters else [[]]
        for arguments in looks:
            try:
                test(*arguments)
            except (Exception, pytest.fail.Exception):  # noqa: BLE001 - whatever, it failed
                failed.append(name)
    return failed


def test_a_sound_one_passes() -> None:
    assert failures(Sound()) == []


@pytest.mark.parametrize("kind", BROKEN.values(), ids=list(BROKEN))
def test_a_broken_one_fails(kind: type) -> None:
    assert failures(kind())


@pytest.mark.parametrize("look", [idle_look(), busy_look()], ids=["idle", "busy"])
def test_the_looks_of_the_kit_are_snapshots(look: dict[str, Any]) -> None:
    snapshot = msgspec.convert(look, Snapshot, strict=True)
    assert msgspec.to_builtins(snapshot) == look, "a field is missing or strange"
    for view in snapshot.kv:
        pages = view.free + view.cached + view.active + view.shared + view.pinned
        assert pages == len(view.cells) * view.pages_per_cell == len(view.owners)
    causes = {row.cause for row in snapshot.waiting} | {row.cause for row in snapshot.running}
    assert causes <= set(CAUSES)


@pytest.mark.parametrize(
    ("name", "title", "reason"),
    [("Ids", "Ids", "id is 'Ids'"), ("ids", "", "title of ids"), ("ids", "a\nb", "title of ids")],
)
def test_what_has_no_name_cannot_be_made(name: str, title: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Panel(name, title, ids_of)
    with pytest.raises(ValueError, match=reason):
        Action(name, title, pause, is_destructive=False)
