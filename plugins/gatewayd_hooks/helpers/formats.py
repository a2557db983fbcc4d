"""Parses a ``GuideSpec`` composed of others: in sequence, as alternatives, or within tags.

The format is that of XGrammar's structural tags.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from gatewayd_hooks.guiding import GrammarRefused, GuideSpec
from gatewayd_hooks.helpers.grammars import StructuralTag, Structure, read_json, read_structural_tag


class FormatLeaf(NamedTuple):
    """Another spec: ``json_schema``, ``regex``, ``choice`` or ``grammar``."""

    spec: GuideSpec


class AnyText(NamedTuple):
    """Any text, up to the first position at which the following element may begin."""


class InOrder(NamedTuple):
    """Sequence of elements."""

    elements: tuple[Format, ...]


class Either(NamedTuple):
    """Alternatives."""

    elements: tuple[Format, ...]


class Tag(NamedTuple):
    """Element between two delimiters.

    Attributes:
        begin: delimiter before it.
        content: the element.
        end: delimiter after it; may be empty.
    """

    begin: str
    content: Format
    end: str


class Tags(NamedTuple):
    """Free text in which triggers begin tags, or tags alone.

    Attributes:
        tags: at least one for each trigger.
        frame: everything else of a ``StructuralTag``; its structures have no schemas.
    """

    tags: tuple[Tag, ...]
    frame: StructuralTag


Format = FormatLeaf | AnyText | InOrder | Either | Tag | Tags


def read_format(text: str, depth: int) -> Format:
    """Parse a spec of the form ``format``.

    Args:
        text: of the spec.
        depth: maximum nesting of objects and arrays.

    Raises:
        GrammarRefused: it is invalid, or nested too deeply.
    """
    return _read("format", read_json("format", text, depth))


def tags_of(tag: StructuralTag) -> Tags:
    """Convert a spec of the form ``structural_tag`` to a format."""
    tags = [
        Tag(one.begin, FormatLeaf(GuideSpec("json_schema", json.dumps(one.schema))), one.end)
        for one in tag.structures
    ]
    return Tags(tuple(tags), tag)


def _read(where: str, found: object) -> Format:
    if not isinstance(found, dict) or found.get("type") not in _READERS:
        raise GrammarRefused(f"{where} must be an object whose type is one of {', '.join(TYPES)}")
    return _READERS[found["type"]](where, found)


def _form(where: str, found: dict[str, Any]) -> FormatLeaf:
    kind: Any = found["type"]
    if kind == "json_schema":
        schema = found.get("json_schema")
        if not isinstance(schema, dict | bool):
            raise GrammarRefused(f"{where}.json_schema must be an object")
        return FormatLeaf(GuideSpec(kind, json.dumps(schema)))
    if kind == "const_string":
        return FormatLeaf(GuideSpec("choice", json.dumps([_string(where, found, "value")])))
    return FormatLeaf(
        GuideSpec(kind, _string(where, found, "pattern" if kind == "regex" else kind))
    )


def _any_text(where: str, found: dict[str, Any]) -> AnyText:
    return AnyText()


def _sequence(where: str, found: dict[str, Any]) -> InOrder:
    return InOrder(_elements(where, found, "elements"))


def _either(where: str, found: dict[str, Any]) -> Either:
    return Either(_elements(where, found, "elements"))


def _tag(where: str, found: dict[str, Any]) -> Tag:
    content = _read(f"{where}.content", found.get("content"))
    return Tag(_string(where, found, "begin"), content, _string(where, found, "end"))


def _tags(where: str, found: dict[str, Any]) -> Tags:
    tags = []
    for i, one in enumerate(_list(where, found, "tags")):
        here = f"{where}.tags[{i}]"
        if not isinstance(one, dict) or one.get("type") != "tag":
            raise GrammarRefused(f"{here} must be an object whose type is tag")
        tags.append(_tag(here, one))
    frame: dict[str, Any] = {
        key: found[key] for key in ("at_least_one", "stop_after_first") if key in found
    }
    if found["type"] == "tags_with_separator":
        frame["separator"] = _string(where, found, "separator")
        frame["triggers"] = [tag.begin for tag in tags]
    else:
        frame["triggers"] = found.get("triggers")
    frame["structures"] = [Structure(tag.begin, True, tag.end)._asdict() for tag in tags]
    # Validated as a structural tag without schemas, whose three levels are an object, a list and
    # objects in it.
    return Tags(tuple(tags), read_structural_tag(json.dumps(frame), 3))


def _elements(where: str, found: dict[str, Any], key: str) -> tuple[Format, ...]:
    elements = enumerate(_list(where, found, key))
    return tuple(_read(f"{where}.{key}[{i}]", one) for i, one in elements)


def _list(where: str, found: dict[str, Any], key: str) -> list[Any]:
    value = found.get(key)
    if not isinstance(value, list) or not value:
        raise GrammarRefused(f"{where}.{key} must be a list, not empty")
    return value


def _string(where: str, found: dict[str, Any], key: str) -> str:
    value = found.get(key)
    if not isinstance(value, str):
        raise GrammarRefused(f"{where}.{key} must be a string")
    return value


_READERS: dict[str, Callable[[str, dict[str, Any]], Format]] = {
    "json_schema": _form,
    "regex": _form,
    "grammar": _form,
    "const_string": _form,
    "any_text": _any_text,
    "sequence": _sequence,
    "or": _either,
    "tag": _tag,
    "triggered_tags": _tags,
    "tags_with_separator": _tags,
}
TYPES = tuple(_READERS)
"""Types of formats."""


# Former names, supported until the major version of the contract is raised.
Form, Sequence = FormatLeaf, InOrder
