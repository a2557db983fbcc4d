"""Looks at a request's fields one by one; a wrong one is refused by its place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from gatewayd_hooks.protocols import Refusal


def wrong(place: str, sentence: str, *, code: str = "invalid_value") -> NoReturn:
    """Refuse a field.

    Raises:
        Refusal: always.
    """
    raise Refusal(400, f"{place} {sentence}", param=place, code=code)


def string(value: object, place: str) -> str:
    """A string.

    Raises:
        Refusal: it is none.
    """
    if not isinstance(value, str):
        wrong(place, f"must be a string, not {kind_of(value)}", code="invalid_type")
    return value


def mapping(value: object, place: str) -> dict[str, Any]:
    """An object.

    Raises:
        Refusal: it is none.
    """
    if not isinstance(value, dict):
        wrong(place, f"must be an object, not {kind_of(value)}", code="invalid_type")
    return value


def entries(value: object, place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a list, each with its place.

    Raises:
        Refusal: it is no list, or an entry no object.
    """
    if not isinstance(value, list):
        wrong(place, f"must be a list, not {kind_of(value)}", code="invalid_type")
    for at, entry in enumerate(value):
        where = f"{place}[{at}]"
        yield where, mapping(entry, where)


MOST_IGNORED = 64
"""Places that are told: each block of a long conversation could have some."""
_NOTHING: tuple[Any, ...] = (None, False, [], {}, {"enabled": False})
"""Values that ask for nothing."""


def note_others(
    entry: dict[str, Any], known: frozenset[str], place: str, ignored: list[str]
) -> None:
    """Name the fields of an object that nobody acts on."""
    if entry.keys() <= known:
        return
    others = [name for name, value in entry.items() if name not in known and value not in _NOTHING]
    ignored += [f"{place}.{name}" for name in others[: max(0, MOST_IGNORED - len(ignored))]]


def kind_of(value: object) -> str:
    """What JSON calls it."""
    names = {str: "a string", bool: "a boolean", list: "a list", dict: "an object"}
    return "null" if value is None else names.get(type(value), "a number")
