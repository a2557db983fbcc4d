"""Finds fields of a request that were accepted without effect, also nested ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

from gatewayd_hooks.requests.tables import SHAPES, Ignored, RequestTable, Shape

MOST_INNER = 64
"""Limit on listed nested fields: every message of a long conversation could have some."""

_NOTHING: tuple[Any, ...] = (None, [], {})
"""Values that request nothing: answers have such fields, and clients send them back."""


def unserved(request: RequestTable, fields: dict[str, Any]) -> list[str]:
    """Return the paths of fields that were accepted without effect.

    Args:
        request: validated.
        fields: of the body that it was made of.

    Returns:
        Paths such as ``seed`` and ``messages[0].prefix``.
    """
    shape = SHAPES[type(request)]
    return [*_outer(shape, fields), *_inner(request, shape, fields)]


def _outer(shape: Shape, fields: dict[str, Any]) -> list[str]:
    known, ignored, _, _ = shape
    if known.issuperset(fields) and ignored.keys().isdisjoint(fields):
        return []
    return [name for name, value in fields.items() if _is_ignored(shape, name, value)]


def _is_ignored(shape: Shape, name: str, value: object) -> bool:
    """Whether a field requests something that is not done."""
    if name not in shape.known:
        return value is not None
    mark = shape.ignored.get(name)
    return mark is not None and value not in mark.neutral


def _inner(request: object, shape: Shape, fields: dict[str, Any]) -> list[str]:
    """Return the paths within a table's fields; built only for what is found."""
    found: list[str] = []
    _, _, inner, acts = shape
    for written, given in fields.items():
        kind = type(given)
        if kind is not list and kind is not dict:
            continue
        if written in inner:
            paths = _within(getattr(request, inner[written]), given)
            found += [f"{written}{path}" for path in paths]
        elif written in acts:
            words = acts[written].words
            found += [f"{written}[{at}]" for at, word in enumerate(given) if word not in words]
    return found[:MOST_INNER]


def _within(value: object, given: object) -> Sequence[str]:
    """Return the paths within a value, each beginning with a dot or an index."""
    found: list[str] = []
    if type(value) is list and type(given) is list:
        for at, one in enumerate(value):
            # Validation keeps the entries of a list and their order.
            shape = SHAPES.get(type(one))
            if shape is not None and (paths := _of_table(one, shape, given[at])):
                found += [f"[{at}]{path}" for path in paths]
                if len(found) >= MOST_INNER:
                    break
    elif (shape := SHAPES.get(type(value))) is not None:
        return _of_table(value, shape, given)
    return found


def _of_table(request: object, shape: Shape, given: object) -> Sequence[str]:
    if type(given) is not dict:
        return ()
    known, ignored, inner, acts = shape
    found: list[str] = []
    if not (known.issuperset(given) and ignored.keys().isdisjoint(given)):
        strange = [name for name, value in given.items() if _asks(name, value, known, ignored)]
        found = [f".{name}" for name in strange[:MOST_INNER]]
    if inner or acts:
        found += [f".{path}" for path in _inner(request, shape, given)]
    return found


def _asks(name: str, value: object, known: Set[str], ignored: Mapping[str, Ignored]) -> bool:
    """Whether a nested field requests something that is not done."""
    if name in known:
        return name in ignored and value not in ignored[name].neutral
    return value not in _NOTHING
