"""What can go wrong with a plugin, each with a message for the operator.

PluginError
├── NotInstalled     the configuration names what no distribution offers
├── Conflict         two distributions offer it
├── LoadFailed       it cannot be imported, registered or built
├── SpecMismatch     it needs another version of the contract
└── BadSettings      its table of the configuration is refused
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches


class PluginError(Exception):
    """A plugin cannot be used; the message says which and why.

    Attributes:
        plugin: ``<kind>.<name>``, as its entry point is called.
        reason: the message without the plugin.
    """

    def __init__(self, plugin: str, reason: str) -> None:
        super().__init__(f"{plugin} {reason}")
        self.plugin = plugin
        self.reason = reason


class NotInstalled(PluginError):
    """No installed distribution offers it."""

    def __init__(self, plugin: str, installed: Sequence[str]) -> None:
        if near := nearest(plugin, installed):
            hint = f"did you mean {near}?"
        elif installed:
            hint = f"there is {', '.join(installed)}"
        else:
            hint = "nothing of its kind is"
        super().__init__(plugin, f"is not installed; {hint}")


class SlotConflict(PluginError):
    """More than one installed distribution offers it."""

    def __init__(self, plugin: str, owners: Sequence[str]) -> None:
        super().__init__(plugin, f"is offered by {' and '.join(owners)}; uninstall all but one")


class LoadFailed(PluginError):
    """It raised, or is not what its entry point promises."""

    def __init__(self, plugin: str, reason: str) -> None:
        super().__init__(plugin, f"cannot be loaded: {reason}")


class SpecMismatch(PluginError):
    """It was written for another version of the contract."""

    def __init__(self, plugin: str, requires: str, spec_version: str) -> None:
        super().__init__(
            plugin, f"needs plugin contract {requires}, but this gatewayd has {spec_version}"
        )


class BadSettings(PluginError):
    """Its configuration is refused.

    Attributes:
        problems: one sentence for each key that is wrong.
    """

    def __init__(self, plugin: str, problems: Sequence[str]) -> None:
        super().__init__(plugin, "; ".join(problems))
        # A table of the file is what is wrong, so the message names it as the file does.
        self.args = ("; ".join(f"[{plugin}] {problem}" for problem in problems),)
        self.problems = tuple(problems)


def nearest(name: str, names: Sequence[str]) -> str | None:
    """The one of ``names`` that ``name`` was probably meant to be."""
    return next(iter(get_close_matches(name, names, n=1)), None)


def told(error: BaseException) -> str:
    """An exception in one line: its type and what it says."""
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words}" if words else type(error).__name__
