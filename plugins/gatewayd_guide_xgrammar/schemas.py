"""Checks that XGrammar supports a JSON Schema: it silently ignores much."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gatewayd_guide_xgrammar.expressions import check_counts, whole
from gatewayd_hooks.guiding import GrammarRefused
from gatewayd_hooks.helpers.schemas import STANDARD, check_schema, subschemas, without_remarks

KNOWS = frozenset(
    {
        "$defs",
        "$ref",
        "additionalProperties",
        "anyOf",
        "const",
        "definitions",
        "enum",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "format",
        "items",
        "maxItems",
        "maxLength",
        "maximum",
        "minItems",
        "minLength",
        "minimum",
        "pattern",
        "prefixItems",
        "properties",
        "required",
        "type",
    }
)
FORMATS = frozenset({"date", "date-time", "email", "time", "uuid"})
_ALONE = {
    "$ref": {"$defs", "definitions"},
    "anyOf": {"$defs", "definitions"},
    "enum": {"type"},
    "const": {"type"},
    "pattern": {"type"},
    "format": {"type"},
}
"""Keywords next to which XGrammar considers only these others."""
_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_OF_TYPE = {
    "properties": "object",
    "required": "object",
    "additionalProperties": "object",
    "items": "array",
    "prefixItems": "array",
    "minItems": "array",
    "maxItems": "array",
    "minLength": "string",
    "maxLength": "string",
    "pattern": "string",
    "format": "string",
    **dict.fromkeys(_BOUNDS, "integer"),
}


def kept(
    schema: dict[str, Any] | bool, most: int, check_pattern: Callable[[str], object]
) -> dict[str, Any]:
    """Return a schema all of which XGrammar supports.

    Args:
        schema: of the request.
        most: maximum number of subschemas.
        check_pattern: raises for an unsupported expression.

    Raises:
        GrammarRefused: it does not.
    """
    if schema is False:
        raise GrammarRefused("json_schema: false allows nothing")
    check_schema(schema, guide="xgrammar", knows=KNOWS, formats=FORMATS, most=most)
    if schema is True:
        return {}
    found: dict[str, Any] = without_remarks(schema, FORMATS)
    for place, one in subschemas(found):
        _check(place, one)
        if isinstance(pattern := one.get("pattern"), str):
            check_counts(pattern)
            one["pattern"] = f"^{whole(pattern, anchored=True)}$"
            check_pattern(one["pattern"])
        if one.get("type") == "object":
            # JSON Schema's default, which differs in XGrammar's structural tags.
            one.setdefault("additionalProperties", True)
    return found


def _check(place: str, one: dict[str, Any]) -> None:
    """Refuse combinations of keywords of which XGrammar would consider only one."""
    standard = one.keys() & STANDARD
    for keyword, others in _ALONE.items():
        if keyword in one and (left := standard - others - {keyword}):
            raise GrammarRefused(
                f"json_schema: xgrammar does not support {sorted(left)[0]!r} together with "
                f"{keyword!r}, at {place}"
            )
    wanted = one.get("type")
    if "type" in one and {"enum", "const"} & one.keys():
        _check_constants(place, one)
    for keyword in standard & _OF_TYPE.keys():
        kind = _OF_TYPE[keyword]
        if wanted != kind:
            raise GrammarRefused(
                f"json_schema: xgrammar supports {keyword!r} only together with "
                f'"type": "{kind}", at {place}'
            )
    properties = one.get("properties")
    # XGrammar would not require such a name.
    for name in one.get("required", ()):
        if not isinstance(properties, dict) or name not in properties:
            raise GrammarRefused(
                f"json_schema: xgrammar requires no property that is not in 'properties', as "
                f"{name!r} at {place}"
            )


_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
    "object": dict,
    "array": list,
}


def _check_constants(place: str, one: dict[str, Any]) -> None:
    constants = one["enum"] if "enum" in one else [one["const"]]
    names = one["type"] if isinstance(one["type"], list) else [one["type"]]
    for constant in constants if isinstance(constants, list) else ():
        if not any(_is_of_type(constant, name) for name in names):
            raise GrammarRefused(f"json_schema: {constant!r} is not of its type, at {place}")


def _is_of_type(constant: object, name: str) -> bool:
    # In Python a bool is an int; in JSON Schema 1.0 is an integer.
    if isinstance(constant, bool):
        return name == "boolean"
    if isinstance(constant, float) and name == "integer":
        return constant.is_integer()
    return name in _TYPES and isinstance(constant, _TYPES[name])
