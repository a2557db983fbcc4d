"""Parses and validates the text of a ``GuideSpec``, within limits, for guides.

The text comes from untrusted clients. It is measured before it is parsed, so that it is never too
large or too deep for the parser itself.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from gatewayd_hooks.guiding import GrammarRefused

# An unterminated string is scanned to the end, once.
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)


class Structure(NamedTuple):
    """One structure of a structural tag.

    Attributes:
        begin: opening text, which begins with a trigger.
        schema: of the content.
        end: closing text; may be empty.
    """

    begin: str
    schema: dict[str, Any] | bool
    end: str


class StructuralTag(NamedTuple):
    """Free text in which triggers begin structures.

    Attributes:
        triggers: strings that must not occur in free text.
        structures: at least one for each trigger.
        at_least_one: whether there must be a structure.
        stop_after_first: whether everything ends with the first structure.
        separator: text between structures, which then have no other text around them; None for any.
    """

    triggers: tuple[str, ...]
    structures: tuple[Structure, ...]
    at_least_one: bool
    stop_after_first: bool
    separator: str | None = None


def check_size(what: str, text: str, most: int) -> None:
    """Refuse a text that is too long.

    Args:
        what: name of the text, for the message.
        text: of the request.
        most: maximum in bytes.

    Raises:
        GrammarRefused: it is longer.
    """
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > most:
        raise GrammarRefused(f"{what} has {size:,} bytes, of which {most:,} are allowed")


def read_json(what: str, text: str, depth: int) -> Any:  # noqa: ANN401 - any JSON
    """Parse JSON whose nesting is limited.

    Args:
        what: name of the text, for the message.
        text: of the request.
        depth: maximum nesting of objects and arrays.

    Raises:
        GrammarRefused: it is no JSON, or deeper.
    """
    now = 0
    for found in _BRACKETS.finditer(text):
        now += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found[0], 0)
        if now > depth:
            raise GrammarRefused(f"{what} is nested deeper than {depth} objects and arrays")
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except ValueError as error:
        raise GrammarRefused(f"{what} is not JSON: {error}") from None


def read_choices(text: str) -> list[str]:
    """Return the distinct strings of a ``choice``, in order.

    Raises:
        GrammarRefused: it is no list of strings, or empty.
    """
    choices = read_json("choice", text, 1)
    if not isinstance(choices, list) or not all(isinstance(one, str) for one in choices):
        raise GrammarRefused("choice must be a list of strings")
    if not choices:
        raise GrammarRefused("choice is empty; it needs at least one string")
    return list(dict.fromkeys(choices))


def read_schema(text: str, depth: int) -> dict[str, Any] | bool:
    """Parse a JSON Schema, which is an object or a boolean.

    Raises:
        GrammarRefused: it is neither, or too deep.
    """
    return _schema("json_schema", read_json("json_schema", text, depth))


def read_structural_tag(text: str, depth: int) -> StructuralTag:
    """Parse a structural tag, all of whose structures begin with a trigger.

    Raises:
        GrammarRefused: it is invalid.
    """
    found = read_json("structural_tag", text, depth)
    if not isinstance(found, dict):
        raise GrammarRefused("structural_tag must be an object")
    known = {"triggers", "structures", "at_least_one", "stop_after_first"}
    known.add("separator")
    if strange := sorted(found.keys() - known):
        raise GrammarRefused(f"structural_tag has no {strange[0]!r}; it has {', '.join(known)}")
    must, stops = found.get("at_least_one", False), found.get("stop_after_first", False)
    if not isinstance(must, bool) or not isinstance(stops, bool):
        raise GrammarRefused("structural_tag.at_least_one and .stop_after_first are booleans")
    triggers, structures = found.get("triggers"), found.get("structures")
    if not isinstance(triggers, list) or not all(isinstance(one, str) and one for one in triggers):
        raise GrammarRefused("structural_tag.triggers must be a list of strings, none empty")
    if not isinstance(structures, list) or not structures:
        raise GrammarRefused("structural_tag.structures must be a list of at least one object")
    heads = shortest(triggers)
    read = tuple(_structure(i, one, heads) for i, one in enumerate(structures))
    # Sorted, so that the first one not before a trigger is the only candidate.
    begins = sorted({structure.begin for structure in read})
    for trigger in triggers:
        at = bisect_left(begins, trigger)
        if at == len(begins) or not begins[at].startswith(trigger):
            raise GrammarRefused(f"structural_tag: no structure begins with trigger {trigger!r}")
    separator = found.get("separator")
    if not isinstance(separator, str | None):
        raise GrammarRefused("structural_tag.separator must be a string")
    return StructuralTag(tuple(dict.fromkeys(triggers)), read, must, stops, separator)


def shortest(texts: Iterable[str]) -> list[str]:
    """Return the texts of which no other is a prefix: ``shortest(["ab", "b", "a"]) == ["a", "b"]``.

    The result is sorted.

    Args:
        texts: none empty.
    """
    found: list[str] = []
    for text in sorted(set(texts)):
        # In sorted order, everything between a text and one that it is a prefix of has that prefix
        # too.
        if not (found and text.startswith(found[-1])):
            found.append(text)
    return found


def head_of(text: str, heads: Sequence[str]) -> str | None:
    """Return the element of ``shortest`` that a text begins with; None if there is none."""
    # Heads are no prefixes of each other, so only the last one not after the text can match.
    at = bisect_right(heads, text)
    return heads[at - 1] if at and text.startswith(heads[at - 1]) else None


def _structure(index: int, found: object, heads: Sequence[str]) -> Structure:
    where = f"structural_tag.structures[{index}]"
    if not isinstance(found, dict):
        raise GrammarRefused(f"{where} must be an object")
    if strange := sorted(found.keys() - {"begin", "schema", "end"}):
        raise GrammarRefused(f"{where} has no {strange[0]!r}; it has begin, schema, end")
    begin, end = found.get("begin"), found.get("end", "")
    if not isinstance(begin, str) or not isinstance(end, str):
        raise GrammarRefused(f"{where}: begin and end must be strings")
    if head_of(begin, heads) is None:
        raise GrammarRefused(f"{where}: begin {begin!r} starts with none of the triggers")
    return Structure(begin, _schema(f"{where}.schema", found.get("schema", {})), end)


def _schema(what: str, found: object) -> dict[str, Any] | bool:
    if not isinstance(found, dict | bool):
        raise GrammarRefused(f"{what} must be an object")
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not allowed")
