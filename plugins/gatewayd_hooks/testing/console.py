"""Conformance tests of console plugins."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pluggy
import pytest

from gatewayd_hooks import hookspecs
from gatewayd_hooks.console import Action, Look, Panel, Refused, Rows
from gatewayd_hooks.host.kinds import KINDS
from gatewayd_hooks.markers import PROJECT
from gatewayd_hooks.testing.looks import busy_look, idle_look


class FakeDaemon:
    """Answers an action's calls: reads with snapshots, changes with an empty object.

    Args:
        look: answer of ``GET /admin/snapshot``.
        refusal: message with which every change is refused; None refuses none.

    Attributes:
        calls: method and route of each call.
    """

    def __init__(self, look: Look, refusal: str | None = None) -> None:
        self._look = look
        self._refusal = refusal
        self.calls: list[tuple[str, str]] = []

    def call(self, method: str, route: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
        """Answer a call.

        Raises:
            Refused: for a change, if configured; for a read of anything but a snapshot.
        """
        assert route.startswith("/admin/"), f"{route} is not a route of the admin API"
        self.calls.append((method, route))
        if (method, route) == ("GET", "/admin/snapshot"):
            return copy.deepcopy(dict(self._look))
        if method == "GET" or self._refusal is not None:
            raise Refused(self._refusal or f"there is no {route} here")
        return {}


class ConsoleConformance:
    """Subclass it and return your module, or what your entry point names, in ``make``."""

    def make(self) -> ModuleType:
        """Return the plugin."""
        raise NotImplementedError("override this method to return the plugin's module")

    @contextmanager
    def plugged(self) -> Iterator[pluggy.PluginManager]:
        """Register the plugin as a console does."""
        manager = pluggy.PluginManager(PROJECT)
        manager.add_hookspecs(hookspecs)
        plugin = self.make()
        manager.register(plugin)
        try:
            yield manager
        finally:
            manager.unregister(plugin)

    def panels(self) -> list[Panel]:
        """Return the panels that it provides."""
        with self.plugged() as manager:
            return [each for some in manager.hook.gatewayd_console_panels() for each in some]

    def actions(self) -> list[Action]:
        """Return the actions that it provides."""
        with self.plugged() as manager:
            return [each for some in manager.hook.gatewayd_console_actions() for each in some]

    def test_it_implements_only_existing_hooks(self) -> None:
        with self.plugged() as manager:
            callers = manager.get_hookcallers(manager.get_plugins().pop()) or []
            assert callers, "it implements no hook: is @hookimpl missing?"
            assert [caller.name for caller in callers if not caller.has_spec()] == []
            manager.check_pending()

    def test_it_offers_no_strategy(self) -> None:
        registering = {spec.hook for spec in KINDS.values()}
        with self.plugged() as manager:
            callers = manager.get_hookcallers(manager.get_plugins().pop()) or []
            assert {caller.name for caller in callers} & registering == set()

    def test_its_panels_and_actions_have_unique_names(self) -> None:
        panels, actions = self.panels(), self.actions()
        assert panels or actions, "it adds neither a panel nor an action"
        assert all(isinstance(each, Panel) for each in panels)
        assert all(isinstance(each, Action) for each in actions)
        for ids in ([each.id for each in panels], [each.id for each in actions]):
            assert len(ids) == len(set(ids)), f"duplicate ids: {ids}"
        keys = [key for key in (*(p.key for p in panels), *(a.key for a in actions)) if key]
        assert len(keys) == len(set(keys)), f"duplicate keys: {keys}"

    @pytest.mark.parametrize("look", [idle_look(), busy_look()], ids=["idle", "busy"])
    def test_a_panel_renders_any_snapshot_without_modifying_it(self, look: dict[str, Any]) -> None:
        for panel in self.panels():
            before = copy.deepcopy(look)
            shown = panel.show(look)
            assert look == before, f"{panel.id} modifies its snapshot"
            if isinstance(shown, Rows):
                widths = {len(row) for row in shown.rows}
                assert widths <= {len(shown.columns)}, (
                    f"{panel.id}: rows and columns differ in length"
                )
                names = [str(row[0]) for row in shown.rows]
                assert len(names) == len(set(names)), f"{panel.id}: duplicate first cells"
            else:
                assert not isinstance(shown, str), f"{panel.id}: lines are a list of strings"
                assert all(isinstance(line, str) for line in shown)

    @pytest.mark.parametrize("look", [idle_look(), busy_look()], ids=["idle", "busy"])
    def test_an_action_reports_its_result(self, look: dict[str, Any]) -> None:
        for action in self.actions():
            result = action.run(FakeDaemon(look))
            assert isinstance(result, str), f"{action.id} must return a sentence about its result"
            assert result.strip(), f"{action.id} must return a sentence about its result"

    def test_an_action_raises_or_reports_a_refusal(self) -> None:
        for action in self.actions():
            daemon = FakeDaemon(busy_look(), "not now")
            try:
                result = action.run(daemon)
            except Refused:
                continue
            changes = [call for call in daemon.calls if call[0] != "GET"]
            assert not changes or "not now" in result, f"{action.id} does not report a refusal"
