"""Almost valid request bodies, drawn from the API's OpenAPI description."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

MOST_TOKENS = 4
"""That a body asks for where it asks for what it may: an answer takes milliseconds."""

_TOKENS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens")
_TEXT = st.text(max_size=20) | st.sampled_from(
    ["", "\x00", "\ud7ff", "\u202e", "<|im_end|>", "{{ 7*7 }}", "a" * 3000, "null", "^(a+)+$"]
)
_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**31, 2**63, 2**64, -1, 0, 10**30])
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXT
)
_ANYTHING = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


def bodies(
    document: Mapping[str, Any], reference: str, base: Mapping[str, Any]
) -> st.SearchStrategy[dict[str, Any]]:
    """Bodies of one route: a good one, in which some fields are others.

    Args:
        document: of OpenAPI.
        reference: of the body's schema.
        base: a good body.
    """
    schema = _resolve(document, {"$ref": reference})
    fields = {name: _field(document, one) for name, one in schema["properties"].items()}
    changes = st.lists(
        st.sampled_from(sorted(fields)).flatmap(
            lambda name: st.tuples(st.just(name), fields[name])
        ),
        max_size=4,
    ).map(dict)
    unknown = st.dictionaries(st.text(max_size=12), _ANYTHING, max_size=1)
    missing = st.sets(st.sampled_from(sorted(base)), max_size=1)
    # Of a route that can stream every other body asks for it, or hardly one in fifty would.
    streams = [{}, {"stream": True}] if "stream" in fields else [{}]
    return st.builds(
        lambda extra, stream, changed, left: _short(
            {**extra, **base, **stream, **changed}, left, base
        ),
        unknown,
        st.sampled_from(streams),
        changes,
        st.just(set()) | st.just(set()) | missing,
    )


def _short(body: dict[str, Any], left_out: set[str], base: Mapping[str, Any]) -> dict[str, Any]:
    """Without some fields; what it may ask for is a few tokens."""
    for name in left_out:
        body.pop(name, None)
    for name in _TOKENS:
        asked = body.get(name)
        if isinstance(asked, int) and MOST_TOKENS < asked < 2048:
            body[name] = MOST_TOKENS
    options = body.get("options")
    if options in (None, [], {}) or isinstance(options, dict):
        asked = (options or {}).get("num_predict")
        if "options" in base and (asked is None or (type(asked) is int and asked < 2048)):
            body["options"] = {**(options or {}), "num_predict": MOST_TOKENS}
    return body


def _resolve(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in schema:
        found: Any = document
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        schema = found
    return schema


def _field(
    document: Mapping[str, Any], schema: Mapping[str, Any], depth: int = 0
) -> st.SearchStrategy[Any]:
    """Values of a field: mostly those that its schema speaks of, at its bounds and beyond."""
    return _fitting(document, schema, depth) | _fitting(document, schema, depth) | _ANYTHING


def _fitting(
    document: Mapping[str, Any], schema: Mapping[str, Any], depth: int
) -> st.SearchStrategy[Any]:
    schema = _resolve(document, schema)
    if depth > 4:
        return _SCALARS
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return st.one_of([_field(document, one, depth + 1) for one in schema[key]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"]) | _TEXT
    if "const" in schema:
        return st.just(schema["const"])
    match schema.get("type"):
        case "integer":
            return _numbers(schema) | st.integers(-4, 40)
        case "number":
            return _numbers(schema) | st.floats(-3, 3)
        case "boolean":
            return st.booleans()
        case "string":
            return _TEXT
        case "array":
            inner = _field(document, schema.get("items", {}), depth + 1)
            return st.lists(inner, max_size=3)
        case "object":
            return _object(document, schema, depth)
    return _ANYTHING


def _numbers(schema: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    edges = [schema[key] for key in schema if key in ("minimum", "maximum", "exclusiveMinimum")]
    return st.sampled_from([edge + by for edge in edges or [0] for by in (-1, 0, 1)])


def _object(
    document: Mapping[str, Any], schema: Mapping[str, Any], depth: int
) -> st.SearchStrategy[Any]:
    properties = schema.get("properties", {})
    if not properties:
        inner = schema.get("additionalProperties")
        values = _field(document, inner, depth + 1) if isinstance(inner, dict) else _ANYTHING
        return st.dictionaries(st.text(max_size=8) | st.just("7"), values, max_size=3)
    fields = {name: _field(document, one, depth + 1) for name, one in properties.items()}
    required = schema.get("required", [])
    return st.fixed_dictionaries(
        {name: fields[name] for name in required},
        optional={name: field for name, field in fields.items() if name not in required},
    )
