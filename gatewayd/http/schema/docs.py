"""Generator of the field tables in docs/api from the request schemas.

``python -m gatewayd.http.schema.docs docs/api`` regenerates them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gatewayd.http.schema.openapi import TABLES
from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.markers import PROJECT
from gatewayd_hooks.requests.tables import (
    RequestTable,
    Unsupported,
    cost_of,
    inner_table,
    support_name,
    support_of,
)
from gatewayd_hooks.strategy import Kind
from gatewayd_hooks.testing.fake_gateway import FakeGateway

_BOUNDS = (
    ("minimum", "\u2265 {}"),
    ("exclusiveMinimum", "> {}"),
    ("maximum", "\u2264 {}"),
    ("minLength", "\u2265 {} characters"),
    ("maxLength", "\u2264 {} characters"),
    ("minItems", "\u2265 {} entries"),
    ("maxItems", "\u2264 {} entries"),
    ("maxProperties", "\u2264 {} entries"),
)


def built_in_tables() -> dict[str, type[RequestTable]]:
    """Return each schema by its name in ``/openapi.json``: ``<protocol>.<table>``."""
    catalog = Catalog.installed()
    host = PluginHost(catalog)
    return {
        f"{entry.name}.{route.request.__name__}": route.request
        for entry in catalog.entries
        if entry.kind == Kind.PROTOCOL and entry.distribution == PROJECT
        for route in host.strategy(Kind.PROTOCOL, entry.name, {}).routes(FakeGateway())
        if route.request is not None
    }


def field_table(table: type[RequestTable]) -> str:
    """Render a Markdown table with a row per field, required ones first, including nested ones."""
    rows = ["| field | type and bounds | support | meaning |", "| --- | --- | --- | --- |"]
    return "\n".join([*rows, *_rows(table, "")])


def _rows(table: type[RequestTable], place: str) -> Iterator[str]:
    schema = table.model_json_schema()
    required = schema.get("required", [])
    fields = schema["properties"].items()
    for name, field in sorted(fields, key=lambda each: each[0] not in required):
        mark = support_of(table, name)
        meaning = mark.reason if isinstance(mark, Unsupported) else field.get("description", "")
        if cost := cost_of(table, name):
            meaning += f" Costs {cost}."
        kind = "" if isinstance(mark, Unsupported) else _type(field)
        support = support_name(table, name) + (", required" if name in required else "")
        yield f"| `{place}{name}` | {kind} | {support} | {meaning} |"
        if inner := inner_table(table, name):
            yield from _rows(inner, f"{place}{name}.")


def rewrite(folder: Path) -> dict[Path, str]:
    """Return the pages with regenerated tables between their markers.

    Args:
        folder: docs/api, from which the pages are read.

    Raises:
        ValueError: no page has the marker of a table.
    """
    pages = {page: page.read_text(encoding="utf-8") for page in sorted(folder.glob("*.md"))}
    tables = {table.__name__: table for table in TABLES}
    for name, table in (tables | built_in_tables()).items():
        mark = f"<!-- fields: {name} -->\n"
        page = next((page for page, text in pages.items() if mark in text), None)
        if page is None:
            raise ValueError(f"no page has a place for {name}")
        head, _, rest = pages[page].partition(mark)
        _, end, tail = rest.partition("<!-- end -->")
        pages[page] = f"{head}{mark}{field_table(table)}\n{end}{tail}"
    return pages


def _type(schema: dict[str, Any]) -> str:
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if alternatives:
        shown = [_type(one) for one in alternatives if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(shown))
    if "$ref" in schema:
        return str(schema["$ref"]).rsplit("/", 1)[-1]
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    kind = str(schema.get("type", "any"))
    if kind == "array":
        kind = f"list of ({_type(schema['items'])})"
    if isinstance(schema.get("additionalProperties"), dict):
        kind = f"object of ({_type(schema['additionalProperties'])})"
    bounds = [shown.format(schema[key]) for key, shown in _BOUNDS if key in schema]
    return ", ".join([kind, *bounds])


if __name__ == "__main__":
    for file, content in rewrite(Path(sys.argv[1])).items():
        file.write_text(content, encoding="utf-8")
