"""Walks a JSON Schema, for guides: checks its size, and that all keywords are supported.

A guide that ignored a keyword would give answers that violate the schema, so unsupported keywords
are refused by name. Keywords that assert nothing may occur anywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from gatewayd_hooks.guiding import GrammarRefused

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
# In old drafts `items` may be a list of schemas, and `type` contain some.
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items", "type", "extends", "disallow")
_ONES = (
    "items",
    "additionalItems",
    "additionalProperties",
    "contains",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
    "unevaluatedItems",
    "unevaluatedProperties",
)
STANDARD = frozenset(
    {
        *_MAPS,
        *_LISTS,
        *_ONES,
        "$ref",
        "$dynamicRef",
        "$recursiveRef",
        "const",
        "contentEncoding",
        "contentMediaType",
        "dependencies",
        "dependentRequired",
        "divisibleBy",
        "enum",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "format",
        "maxContains",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minContains",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "multipleOf",
        "pattern",
        "required",
        "uniqueItems",
    }
) - {"contentEncoding", "contentMediaType"}
"""Keywords of any draft that assert something or contain subschemas; all others are annotations."""
FORMATS = frozenset(
    {
        "date",
        "date-time",
        "duration",
        "email",
        "hostname",
        "idn-email",
        "idn-hostname",
        "ipv4",
        "ipv6",
        "iri",
        "iri-reference",
        "json-pointer",
        "regex",
        "relative-json-pointer",
        "time",
        "uri",
        "uri-reference",
        "uri-template",
        "uuid",
    }
)
"""Formats that JSON Schema defines. Others, as ``password`` or ``int64``, are annotations."""


def subschemas(schema: object, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every object schema within a schema, itself included, with its path.

    Constants and property names are not mistaken for schemas.
    """
    # A stack instead of recursion, as schemas are a client's.
    open_: list[tuple[str, object]] = [(path, schema)]
    while open_:
        place, one = open_.pop()
        if not isinstance(one, dict):
            continue
        yield place or "the root", one
        for keyword in _MAPS:
            if isinstance(inner := one.get(keyword), dict):
                open_ += [(f"{place}/{keyword}/{name}", sub) for name, sub in inner.items()]
        for keyword in _LISTS:
            if isinstance(inner := one.get(keyword), list):
                open_ += [(f"{place}/{keyword}/{i}", sub) for i, sub in enumerate(inner)]
        open_ += [(f"{place}/{keyword}", one.get(keyword)) for keyword in _ONES]


def check_schema(
    schema: object,
    *,
    guide: str,
    knows: Collection[str],
    formats: Collection[str],
    most: int,
) -> None:
    """Refuse what a guide does not support.

    Args:
        schema: parsed.
        guide: its name, for the message.
        knows: supported keywords.
        formats: supported formats of strings.
        most: maximum number of subschemas.

    Raises:
        GrammarRefused: a keyword or a format is not supported, or there are too many schemas.
    """
    # Counted while they are found, so that a huge schema is refused early.
    for count, (place, one) in enumerate(subschemas(schema), 1):
        if count > most:
            raise GrammarRefused(f"json_schema has more than {most:,} schemas in it")
        for keyword in one:
            if keyword in STANDARD and keyword not in knows:
                raise GrammarRefused(
                    f"json_schema: {guide} does not support the keyword {keyword!r}, at {place}"
                )
        wanted = one.get("format")
        if wanted in FORMATS and wanted not in formats:
            raise GrammarRefused(
                f"json_schema: {guide} does not support the format {wanted!r}, at {place}; it has "
                + ", ".join(sorted(formats))
            )
        if not isinstance(wanted, str | None):
            raise GrammarRefused(f"json_schema: format must be a string, at {place}")


def without_remarks(schema: Any, formats: Collection[str]) -> Any:  # noqa: ANN401 - any JSON
    """Return a copy without formats that assert nothing, which some libraries fail on."""
    copy = _copied(schema)
    for _, one in subschemas(copy):
        if "format" in one and one["format"] not in formats:
            del one["format"]
    return copy


def _copied(value: Any) -> Any:  # noqa: ANN401 - any JSON; no deeper than what was read
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    return [_copied(one) for one in value] if isinstance(value, list) else value
