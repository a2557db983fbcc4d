"""Plugin routes: installed plugins and their settings, without a daemon."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from starlette.routing import Router

from gatewayd.admin.app import AdminErrorMiddleware
from gatewayd.admin.control import SWAPPABLE, Control
from gatewayd.admin.plugins import plugin_routes
from gatewayd.config.tables import Config
from gatewayd.wire.plugins import PluginSettings, PluginView
from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.strategy import Kind
from tests.gatewayd.admin.test_control import SECRET, control_of


@pytest.fixture(scope="module")
def control() -> Control:
    table = {"strategies": ["bias", "watermark"], "watermark": {"secret": SECRET}}
    return control_of(Config(logits_processor=table))[0]  # type: ignore[arg-type]


async def get(control: Control, path: str) -> tuple[int, Any]:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": []}
    await AdminErrorMiddleware(Router(plugin_routes(control)))(scope, receive, send)
    return sent[0]["status"], json.loads(b"".join(part["body"] for part in sent[1:]))


async def test_everything_installed_is_listed_with_its_state(control: Control) -> None:
    status, answer = await get(control, "/admin/plugins")
    rows = msgspec.convert(answer["plugins"], list[PluginView])
    assert status == 200
    found = {f"{row.kind}.{row.name}": row for row in rows}
    assert found.keys() == {entry.plugin for entry in Catalog.installed().entries}
    assert found["logits_processor.watermark"].state == "enabled"
    assert found["logits_processor.penalties"].state == "installed"
    assert found["scheduler.fcfs"].can_swap
    assert not found["executor.local"].can_swap
    assert {row.kind for row in rows if row.can_swap} <= set(SWAPPABLE)


async def test_one_that_was_replaced_is_not_enabled_any_more() -> None:
    control, _ = control_of(Config())
    before = next(row for row in control.plugins() if row.kind == "router" and row.name == "prefix")
    await control.swap("router", ["prefix"], {}, "us")
    rows = {row.name: row.state for row in control.plugins() if row.kind == "router"}
    assert (before.state, rows) == ("installed", {"least_loaded": "installed", "prefix": "enabled"})


@pytest.mark.parametrize(
    "plugin", [e.plugin for e in Catalog.installed().entries if e.kind in SWAPPABLE]
)
async def test_the_settings_are_those_of_the_plugin(control: Control, plugin: str) -> None:
    kind, _, name = plugin.partition(".")
    status, answer = await get(control, f"/admin/plugins/{kind}/{name}")
    assert status == 200
    found = msgspec.convert(answer, PluginSettings)
    fields = PluginHost(Catalog.installed()).info(Kind(kind), name).config_type.model_fields
    assert [each.name for each in found.settings] == list(fields)
    for each in found.settings:
        assert each.doc
        assert each.takes
        assert each.reload in ("hot", "restart", "secret")


async def test_bounds_are_told_and_values_of_the_configuration() -> None:
    table = {"strategy": "fcfs", "priority": {"batch": 7}}
    control, _ = control_of(Config(scheduler=table))  # type: ignore[arg-type]
    _, answer = await get(control, "/admin/plugins/scheduler/priority")
    found = {each["name"]: each for each in answer["settings"]}
    assert found["batch"]["value"] == 7
    assert found["realtime"]["value"] is None
    assert found["batch"]["takes"].startswith("float, above 0, at most 1e+06")


async def test_a_secret_is_not_shown(control: Control) -> None:
    _, answer = await get(control, "/admin/plugins/logits_processor/watermark")
    (setting,) = [s for s in answer["settings"] if s["reload"] == "secret"]
    assert (setting["name"], setting["value"]) == ("secret", None)
    assert SECRET not in json.dumps(answer)


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("scheduler/fcsf", 400, "did you mean scheduler.fcfs?"),
        ("speculation/none", 404, "there is no kind 'speculation'; there is "),
        ("observer/any", 404, "there is no kind 'observer'"),
    ],
)
async def test_what_is_not_there_is_named(
    control: Control, path: str, status: int, words: str
) -> None:
    answer = await get(control, f"/admin/plugins/{path}")
    assert answer[0] == status
    assert words in answer[1]["error"]["message"]
