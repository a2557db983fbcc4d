"""Installed plugins as shown to operators: the state of each, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gatewayd_hooks.host.catalog import Entry


@dataclass(frozen=True, slots=True)
class LoadFailure:
    """Requested plugin that could not be loaded.

    Attributes:
        kind: its kind.
        name: its name.
        reason: why, in one line.
    """

    kind: str
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class PluginRow:
    """One installed plugin, as shown to operators.

    Attributes:
        kind: its kind.
        name: its name.
        distribution: the package it came in.
        version: of the distribution.
        state: ``installed``, ``enabled``, ``failed``, ``conflict`` or ``unknown``.
        summary: its own description; empty until it is loaded.
        reason: why it failed or cannot be chosen.
    """

    kind: str
    name: str
    distribution: str
    version: str
    state: str
    summary: str
    reason: str


def row_of(
    entry: Entry, owners: Sequence[Entry], *, summary: str, failure: str | None, is_enabled: bool
) -> PluginRow:
    """Return the row of a plugin.

    Args:
        entry: the plugin.
        owners: all entries of its kind and name, including itself.
        summary: its own description; empty until it is loaded.
        failure: why it could not be loaded the last time; None if it could.
        is_enabled: whether it was loaded because the configuration names it.
    """
    reason = ""
    if not entry.is_known:
        state, reason = "unknown", "this gatewayd has no such kind"
    elif len(owners) > 1:
        others = " and ".join(owner.owner for owner in owners if owner is not entry)
        state, reason = "conflict", f"also offered by {others}"
    elif failure is not None:
        state, reason = "failed", failure
    else:
        state = "enabled" if is_enabled else "installed"
    return PluginRow(
        entry.kind, entry.name, entry.distribution, entry.version, state, summary, reason
    )
