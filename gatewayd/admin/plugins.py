"""Routes of the admin API for installed plugins and their settings.

The list imports nothing. A query for a plugin's settings loads it, as a swap to it would.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from starlette.routing import Route

from gatewayd.admin.control import SWAPPABLE, Control
from gatewayd.errors import InvalidRequest, NotFound
from gatewayd.http.asgi import Receive, Scope, Send, send_json
from gatewayd.http.methods import route
from gatewayd.wire.plugins import PluginSettings, PluginView, SettingView
from gatewayd_hooks.host.errors import PluginError
from gatewayd_hooks.host.kinds import KINDS
from gatewayd_hooks.host.settings import is_secret
from gatewayd_hooks.strategy import Kind

_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


class PluginsRoute:
    """Lists the installed plugins."""

    def __init__(self, control: Control) -> None:
        self._control = control

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        rows = [
            PluginView(
                kind=row.kind,
                name=row.name,
                distribution=row.distribution,
                version=row.version,
                state=row.state,
                summary=row.summary,
                reason=row.reason,
                can_swap=row.kind in SWAPPABLE and row.state in ("installed", "enabled"),
            )
            for row in self._control.plugins()
        ]
        await send_json(send, {"plugins": msgspec.to_builtins(rows)})


class SettingsRoute:
    """Lists the settings of a plugin."""

    def __init__(self, control: Control) -> None:
        self._control = control

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        kind, name = scope["path_params"]["kind"], scope["path_params"]["name"]
        if kind not in KINDS:
            raise NotFound(f"there is no kind {kind[:64]!r}; there is {', '.join(KINDS)}")
        try:
            info, values = await self._control.offer(Kind(kind), name)
        except PluginError as error:
            raise InvalidRequest(str(error), param="name") from error
        found = PluginSettings(
            kind=kind,
            name=name,
            summary=info.summary,
            settings=settings_of(info.config_type, values),
        )
        # Defaults may be of any type; to be shown, text is enough.
        await send_json(send, msgspec.to_builtins(found, enc_hook=str))


def settings_of(config_type: type[BaseModel], values: Mapping[str, Any]) -> list[SettingView]:
    """All settings in their order; without the values of secrets."""
    return [
        SettingView(
            name=name,
            doc=field.description or "",
            takes=_takes(field),
            default=None if field.is_required() else field.get_default(call_default_factory=True),
            value=None if is_secret(config_type, name) else values.get(name),
            reload=_reload(field),
        )
        for name, field in config_type.model_fields.items()
    ]


def plugin_routes(control: Control) -> list[Route]:
    """All routes of plugins."""
    return [
        route("/admin/plugins", GET=PluginsRoute(control)),
        route("/admin/plugins/{kind}/{name}", GET=SettingsRoute(control)),
    ]


def _takes(field: FieldInfo) -> str:
    kind = field.annotation
    words = [kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")]
    for each in field.metadata:
        words += [f"{word} {each_value:g}" for word, each_value in _bounds(each)]
    return ", ".join(words)


def _bounds(constraint: object) -> list[tuple[str, float]]:
    found = [(word, getattr(constraint, name, None)) for name, word in _BOUNDS.items()]
    return [(word, value) for word, value in found if isinstance(value, int | float)]


def _reload(field: FieldInfo) -> str:
    extra = field.json_schema_extra
    # The same default as in ``needing_restart``.
    return str(extra.get("reload", "restart")) if isinstance(extra, dict) else "restart"
