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


def kind_of(value: object) -> str:
    """What JSON calls it."""
    names = {str: "a string", bool: "a boolean", list: "a list", dict: "an object"}
    return "null" if value is None else names.get(type(value), "a number")
