"""Plugin errors, each with a message for the operator.

PluginError
├── NotInstalled     the configuration names what no distribution provides
├── DuplicatePlugin  two distributions provide it
├── LoadFailed       it cannot be imported, registered or built
├── SpecMismatch     it needs another version of the contract
└── BadSettings      its table of the configuration is invalid
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches


class PluginError(Exception):
    """Raised when a plugin cannot be used; the message says which and why.

    Attributes:
        plugin: ``<kind>.<name>``, the name of its entry point.
        reason: the message without the plugin.
    """

    def __init__(self, plugin: str, reason: str) -> None:
        super().__init__(f"{plugin} {reason}")
        self.plugin = plugin
        self.reason = reason


class NotInstalled(PluginError):
    """No installed distribution provides the plugin."""

    def __init__(self, plugin: str, installed: Sequence[str]) -> None:
        if near := nearest(plugin, installed):
            hint = f"did you mean {near}?"
        elif installed:
            hint = f"there is {', '.join(installed)}"
        else:
            hint = "nothing of its kind is"
        super().__init__(plugin, f"is not installed; {hint}")


class DuplicatePlugin(PluginError):
    """More than one installed distribution provides the plugin."""

    def __init__(self, plugin: str, owners: Sequence[str]) -> None:
        super().__init__(plugin, f"is offered by {' and '.join(owners)}; uninstall all but one")


class LoadFailed(PluginError):
    """The plugin raised, or is not what its entry point declares."""

    def __init__(self, plugin: str, reason: str) -> None:
        super().__init__(plugin, f"cannot be loaded: {reason}")


class SpecMismatch(PluginError):
    """The plugin was written for another version of the contract."""

    def __init__(self, plugin: str, requires: str, spec_version: str) -> None:
        super().__init__(
            plugin, f"needs plugin contract {requires}, but this gatewayd has {spec_version}"
        )


class BadSettings(PluginError):
    """The plugin's configuration is invalid.

    Attributes:
        problems: one sentence for each invalid key.
    """

    def __init__(self, plugin: str, problems: Sequence[str]) -> None:
        super().__init__(plugin, "; ".join(problems))
        # The error is in a table of the configuration file, so the message uses the table's name.
        self.args = ("; ".join(f"[{plugin}] {problem}" for problem in problems),)
        self.problems = tuple(problems)


def nearest(name: str, names: Sequence[str]) -> str | None:
    """Return the name that ``name`` was probably meant to be; None if none is similar."""
    return next(iter(get_close_matches(name, names, n=1)), None)


def describe_error(error: BaseException) -> str:
    """Return an exception in one line: its type and message."""
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words}" if words else type(error).__name__
