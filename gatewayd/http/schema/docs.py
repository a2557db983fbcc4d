"""The field tables of docs/api.md, made from the table of request fields.

``python -m gatewayd.http.schema.docs docs/api.md`` writes them again.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from gatewayd.http.schema.fields import RequestTable, Unsupported, cost_of, support_of
from gatewayd.http.schema.openapi import TABLES, support_name

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
    """A Markdown table: one row for each field."""
    schema = table.model_json_schema()
    required = schema.get("required", [])
    rows = ["| field | type and bounds | support | meaning |", "| --- | --- | --- | --- |"]
    for name, field in schema["properties"].items():
        mark = support_of(table, name)
        meaning = mark.reason if isinstance(mark, Unsupported) else field.get("description", "")
        if cost := cost_of(table, name):
            meaning += f" Costs {cost}."
        kind = "" if isinstance(mark, Unsupported) else _type(field)
        support = support_name(table, name) + (", required" if name in required else "")
        rows.append(f"| `{name}` | {kind} | {support} | {meaning} |")
    return "\n".join(rows)


def rewrite(text: str) -> str:
    """Put fresh tables between the markers of a document.

    Raises:
        ValueError: a marker is missing.
    """
    for table in TABLES:
        head, begin, rest = text.partition(f"<!-- fields: {table.__name__} -->\n")
        if not begin:
            raise ValueError(f"the document has no place for {table.__name__}")
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
