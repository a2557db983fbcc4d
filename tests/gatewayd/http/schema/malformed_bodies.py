"""Malformed bodies that must be refused, generated from the table of request fields."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from gatewayd_hooks.requests.tables import RequestTable, Unsupported, support_of


class Bad(NamedTuple):
    """A field and a value it must not have, as JSON text."""

    field: str
    literal: str


# Values of every wrong kind; for each field those outside its schema are kept.
_LITERALS = [
    "true",
    '"x"',
    "[]",
    "{}",
    "[[]]",
    '[{"a":1}]',
    "1.5",
    "[true]",
    '["x",1]',
    '{"a":"b"}',
]


def bad_fields(table: type[RequestTable]) -> Iterator[Bad]:
    """Every field with values beyond its bounds, of other types, and not finite."""
    properties = table.model_json_schema()["properties"]
    for name, schema in properties.items():
        if isinstance(support_of(table, name), Unsupported):
            yield Bad(name, '{"asks":"for something"}')
            continue
        kinds = _alternatives(schema)
        for kind in kinds:
            yield from (Bad(name, literal) for literal in _beyond(kind))
        if any(kind.get("type") in ("integer", "number") for kind in kinds):
            for literal in ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", '"7"', "1" * 5000):
                yield Bad(name, literal)
        if kinds and all(kind.get("type") for kind in kinds):
            types = {kind["type"] for kind in kinds}
            yield from (Bad(name, text) for text in _LITERALS if _json_type(text) not in types)


def _alternatives(schema: dict[str, Any]) -> list[dict[str, Any]]:
    found = schema.get("anyOf", [schema])
    return [one for one in found if one.get("type") not in (None, "null")]


def _beyond(schema: dict[str, Any]) -> Iterator[str]:
    if "minimum" in schema:
        yield from (repr(schema["minimum"] - 1), str(-(2**63) - 1))
    if "exclusiveMinimum" in schema:
        yield from (repr(schema["exclusiveMinimum"]), "-5e-324")
    if "maximum" in schema:
        yield from (repr(schema["maximum"] + 1), str(2**63), str(2**64), str(10**30))
    if schema.get("type") == "integer":
        yield from ("7.0", "1e3", "true", "1.5")
    if "maxLength" in schema:
        yield json.dumps("x" * (schema["maxLength"] + 1))
    if schema.get("minLength"):
        yield '""'
    if "enum" in schema:
        yield '"no such value"'
    if schema.get("minItems"):
        yield "[]"
    if schema.get("type") == "array" and schema.get("maxItems", 10**6) < 10**5:
        item = {"string": '"x"', "integer": "1"}.get(schema["items"].get("type"), "{}")
        yield "[" + ",".join([item] * (schema["maxItems"] + 1)) + "]"
    if "maxProperties" in schema:
        yield json.dumps({str(at): 1 for at in range(schema["maxProperties"] + 1)})


def _json_type(literal: str) -> str:
    value = json.loads(literal)
    names = {bool: "boolean", str: "string", list: "array", dict: "object", float: "number"}
    return names[type(value)]


def with_field(body: dict[str, Any], bad: Bad) -> bytes:
    """A body whose one field is wrong."""
    rest = {key: value for key, value in body.items() if key != bad.field}
    inner = json.dumps(rest)[1:-1]
    return f'{{{inner}, "{bad.field}": {bad.literal}}}'.encode()


BROKEN_JSON: list[bytes] = [
    b"",
    b" ",
    b"{",
    b"}",
    b"[]",
    b"null",
    b"1",
    b'"x"',
    b"{}{}",
    b"{'model': 'nano'}",
    b'{"model": "nano",}',
    b'{"model": nano}',
    b'{"model": "nano"} x',
    b"\xef\xbb\xbf{}",
    '{"model": "nano"}'.encode("utf-16"),
    b'{"model": "\xff"}',
    b'{"model": "\xc3"}',
    b'{"model": "\xed\xa0\x80"}',
    b'{"model": "\\ud800"}',
    b'{"\\udc00": 1}',
    b'{"model": "\\x41"}',
    b'{"model": "a\nb"}',
    b'{"model": "nano", "model": "nano"}',
    b'{"model": "nano", "a": {"b": 1, "b": 2}}',
    b'{"model": "nano", "m\\u006fdel": "nano"}',
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b'{"model": "nano", "x": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    b'{"model": "nano", "x": ' + b"1" * 5000 + b"}",
    b'{"model": "nano", "x": NaN}',
    b'{"model": "nano", "x": 1e999}',
    b'{"model": "nano", "x": 01}',
    b'{"model": "nano", "x": .5}',
    b'{"model": "nano", "x": +1}',
    b"\x00",
    b"\x00" * 100,
]

BAD_MESSAGES: list[Any] = [
    [],
    [{}],
    [{"role": "user"}],
    [{"content": "x"}],
    [{"role": "tool", "content": "x"}],
    [{"role": "nobody", "content": "x"}],
    [{"role": "user", "content": None}],
    [{"role": "user", "content": 1}],
    [{"role": "user", "content": []}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc"}}]}],
    [{"role": "user", "content": [{"type": "text"}]}],
    [{"role": "user", "content": ["x"]}],
    [{"role": ["user"], "content": "x"}],
    [[{"role": "user", "content": "x"}]],
    ["x"],
    "x",
    {"role": "user", "content": "x"},
]
