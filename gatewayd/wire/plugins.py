"""Bodies of the admin API for installed plugins, ``GET /admin/plugins`` and below."""

from __future__ import annotations

from typing import Any

import msgspec


class PluginView(msgspec.Struct, frozen=True, kw_only=True):
    """An installed plugin.

    Attributes:
        kind, name: its kind and name; the configuration refers to it by its name.
        distribution, version: its package.
        state: ``installed``, ``enabled``, ``failed``, ``conflict`` or ``unknown``.
        summary: its own description; empty until the daemon has loaded it.
        reason: why it failed or cannot be chosen.
        can_swap: whether it can be chosen at runtime.
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
        doc: description, with its unit.
        takes: its type and bounds.
        default: value used if the configuration does not set it.
        value: configured value; null if it is not set, or secret.
        reload: ``hot``, ``restart`` or ``secret``.
    """

    name: str
    doc: str
    takes: str
    default: Any
    value: Any
    reload: str


class PluginSettings(msgspec.Struct, frozen=True, kw_only=True):
    """``GET /admin/plugins/{kind}/{name}``: settings of a plugin.

    Attributes:
        kind, name, summary: as in ``PluginView``.
        settings: its settings in their order.
    """

    kind: str
    name: str
    summary: str
    settings: list[SettingView]
