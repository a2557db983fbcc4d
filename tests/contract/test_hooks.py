"""Hooks: each reaches its plugins with its arguments, and none is called per token."""

from __future__ import annotations

import inspect
from typing import Any

import pluggy
import pytest

from gatewayd_hooks import hookspecs
from gatewayd_hooks.events import DaemonInfo, RequestAdmitted, RequestFinished
from gatewayd_hooks.host.kinds import KINDS
from gatewayd_hooks.markers import PROJECT, hookimpl
from gatewayd_hooks.strategy import Kind

HOOKS = {
    name: function
    for name, function in vars(hookspecs).items()
    if name.startswith("gatewayd_") and inspect.isfunction(function)
}
ARGUMENTS: dict[str, dict[str, Any]] = {
    **{spec.hook: {} for spec in KINDS.values()},
    "gatewayd_started": {"info": DaemonInfo("1.2", "nano")},
    "gatewayd_metrics": {"registry": object()},
    "gatewayd_request_admitted": {"event": RequestAdmitted("r1", "acme", "/v1/completions", 7, 1)},
    "gatewayd_request_finished": {
        "event": RequestFinished("r1", "acme", "stop", 7, 0, 5, 0.1, 0.5)
    },
    "gatewayd_stopping": {"reason": "SIGTERM"},
    "gatewayd_console_panels": {},
    "gatewayd_console_actions": {},
}
"""Hook to what it is called with."""


def test_every_hook_is_called_here() -> None:
    assert set(ARGUMENTS) == set(HOOKS)


@pytest.mark.parametrize("name", HOOKS)
def test_a_plugin_hears_a_hook_with_its_arguments(name: str) -> None:
    heard: list[dict[str, Any]] = []
    parameters = list(inspect.signature(HOOKS[name]).parameters)
    namespace: dict[str, Any] = {"heard": heard}
    exec(  # a plugin's function has the hook's name and arguments
        f"def {name}({', '.join(parameters)}):\n"
        f"    heard.append({{{', '.join(f'{p!r}: {p}' for p in parameters)}}})\n"
        "    return 'an answer'",
        namespace,
    )
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    plugin = type("Plugin", (), {name: staticmethod(hookimpl(namespace[name]))})
    manager.register(plugin)
    manager.check_pending()
    answers = getattr(manager.hook, name)(**ARGUMENTS[name])
    assert heard == [ARGUMENTS[name]]
    assert answers == ["an answer"]


def test_every_kind_with_strategies_has_a_registration_hook() -> None:
    assert set(KINDS) == set(Kind) - {Kind.OBSERVER, Kind.CONSOLE}
    assert {spec.hook for spec in KINDS.values()} <= set(HOOKS)


@pytest.mark.parametrize("name", HOOKS)
def test_no_hook_is_called_per_token(name: str) -> None:
    assert "token" not in name
    assert "step" not in name
