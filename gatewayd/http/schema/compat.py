"""``/v1/gateway/compat``: support of each request field, generated from the request schemas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gatewayd.http.schema.openapi import OPERATIONS, Operation
from gatewayd_hooks.requests.tables import (
    RequestTable,
    Unsupported,
    cost_of,
    inner_table,
    support_name,
    support_of,
)

_KEPT = ("type", "anyOf", "enum", "items", "additionalProperties", "$ref")
_BOUNDS = (
    "minimum",
    "exclusiveMinimum",
    "maximum",
    "exclusiveMaximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "maxProperties",
)


def compatibility(version: str, more: Sequence[Operation] = ()) -> dict[str, Any]:
    """Build the report: every route, and every field of request bodies.

    Args:
        version: of the daemon.
        more: additional operations, of the store and of protocol plugins.
    """
    routes = []
    for operation in (*OPERATIONS, *more):
        route: dict[str, Any] = {
            "method": operation.method.upper(),
            "path": operation.path,
            "summary": operation.summary,
        }
        if operation.request is not None:
            route["fields"] = _fields(operation.request)
        routes.append(route)
    return {"version": version, "unknown_fields": "ignored, with notice", "routes": routes}


def _fields(table: type[RequestTable]) -> list[dict[str, Any]]:
    schema = table.model_json_schema()
    required = schema.get("required", [])
    return [
        _field(table, name, field, is_required=name in required)
        for name, field in schema["properties"].items()
    ]


def _field(
    table: type[RequestTable], name: str, schema: dict[str, Any], *, is_required: bool
) -> dict[str, Any]:
    mark = support_of(table, name)
    report: dict[str, Any] = {"name": name, "support": support_name(table, name)}
    if isinstance(mark, Unsupported):
        return {**report, "reason": mark.reason, "accepted": list(mark.neutral)}
    report["required"] = is_required
    if not is_required:
        report["default"] = schema.get("default")
    report["schema"] = {key: schema[key] for key in (*_KEPT, *_BOUNDS) if key in schema}
    if meaning := schema.get("description"):
        report["meaning"] = meaning
    if cost := cost_of(table, name):
        report["cost"] = cost
    if inner := inner_table(table, name):
        report["fields"] = _fields(inner)
    return report
