"""What the admin API tells of installed plugins, ``GET /admin/plugins`` and below it."""

from __future__ import annotations

from typing import Any

import msgspec


class PluginView(msgspec.Struct, frozen=True, kw_only=True):
    """An installed plugin.

    Attributes:
        kind, name: of it; the configuration calls it by its name.
        distribution, version: the package it came in.
        state: ``installed``, ``enabled``, ``failed``, ``conflict`` or ``unknown``.
        summary: its own words; empty until the daemon has loaded it.
        reason: why it failed or cannot be chosen.
        can_swap: whether it can be chosen while the daemon serves.
    """

    kind: str
    name: str
    distribution: str
    version: str
    state: str
    summary: str
    reason: str
    can_swap: bool


class SettingView(msgspec.Struct, frozen=True, kw_only=True):
    """A setting of a strategy.

    Attributes:
        name: its key.
        doc: what it is, with its unit.
        takes: its type and bounds in a few words.
        default: where the configuration is silent.
        value: of the configuration; null where it is silent or may not be shown.
        reload: ``hot``, ``restart`` or ``secret``.
    """

    name: str
    doc: str
    takes: str
    default: Any
    value: Any
    reload: str


class PluginSettings(msgspec.Struct, frozen=True, kw_only=True):
    """``GET /admin/plugins/{kind}/{name}``: what may be set when it is chosen.

    Attributes:
        kind, name, summary: as for ``PluginView``.
        settings: in their order.
    """

    kind: str
    name: str
    summary: str
    settings: list[SettingView]
