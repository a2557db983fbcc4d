"""The field tables of docs/api.md, made from the table of request fields.

``python -m gatewayd.http.schema.docs docs/api.md`` writes them again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gatewayd.http.schema.built_in import built_in_tables
from gatewayd.http.schema.openapi import TABLES
from gatewayd_hooks.requests.tables import (
    RequestTable,
    Unsupported,
    cost_of,
    inner_table,
    support_name,
    support_of,
)

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


def field_table(table: type[RequestTable]) -> str:
    """A Markdown table: one row for each field, and for those of one that is a table itself."""
    rows = ["| field | type and bounds | support | meaning |", "| --- | --- | --- | --- |"]
    return "\n".join([*rows, *_rows(table, "")])


def _rows(table: type[RequestTable], place: str) -> Iterator[str]:
    schema = table.model_json_schema()
    required = schema.get("required", [])
    for name, field in schema["properties"].items():
        mark = support_of(table, name)
        meaning = mark.reason if isinstance(mark, Unsupported) else field.get("description", "")
        if cost := cost_of(table, name):
            meaning += f" Costs {cost}."
        kind = "" if isinstance(mark, Unsupported) else _type(field)
        support = support_name(table, name) + (", required" if name in required else "")
        yield f"| `{place}{name}` | {kind} | {support} | {meaning} |"
        if inner := inner_table(table, name):
            yield from _rows(inner, f"{place}{name}.")


def rewrite(text: str) -> str:
    """Put fresh tables between the markers of a document.

    Raises:
        ValueError: a marker is missing.
    """
    tables = {table.__name__: table for table in TABLES}
    for name, table in (tables | built_in_tables()).items():
        head, begin, rest = text.partition(f"<!-- fields: {name} -->\n")
        if not begin:
            raise ValueError(f"the document has no place for {name}")
        _, end, tail = rest.partition("<!-- end -->")
        text = head + begin + field_table(table) + "\n" + end + tail
    return text


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
    file = Path(sys.argv[1])
    file.write_text(rewrite(file.read_text(encoding="utf-8")), encoding="utf-8")
