"""Bytes to a checked request: strict JSON, then the table of fields.

Refused where JSON parsers differ: NaN, infinities, duplicate keys, bad UTF-8, lone surrogates.
"""

from __future__ import annotations

import json
from typing import Any, TypeVar

import msgspec

from gatewayd.errors import InvalidRequest
from gatewayd.http import collecting
from gatewayd_hooks import checking
from gatewayd_hooks.nesting import field_too_deep, is_too_deep, too_deep
from gatewayd_hooks.num_values import TOO_MANY, has_too_many
from gatewayd_hooks.refusal import Refusal
from gatewayd_hooks.tables import RequestTable

TableT = TypeVar("TableT", bound=RequestTable)

_SMALL_BYTES = 16 * 1024
"""Of a body of which so few objects are made that the garbage collector may come by."""

_decode = msgspec.json.Decoder().decode


def _unique(pairs: list[tuple[str, Any]]) -> None:
    """Refuse a key that comes twice: two parsers would read two different requests."""
    if len(dict(pairs)) == len(pairs):
        return
    seen = set()
    for key, _ in pairs:
        if key in seen:
            raise InvalidRequest(
                f"the key {key[:64]!r} comes twice", param=key[:64], code="invalid_json"
            )
        seen.add(key)


_find_duplicates = json.JSONDecoder(object_pairs_hook=_unique).raw_decode
"""msgspec keeps the last of two equal keys and says nothing."""


def parse(table: type[TableT], body: bytes) -> tuple[TableT, list[str]]:
    """Check a body.

    Returns:
        The request, and the names of fields that were accepted and not acted on.

    Raises:
        InvalidRequest: it is not JSON, or a field is wrong or not supported.
    """
    if len(body) <= _SMALL_BYTES:
        return check(table, _object(body))
    with collecting.held():
        return check(table, _object(body))


def check(table: type[TableT], fields: dict[str, Any]) -> tuple[TableT, list[str]]:
    """Check a body that has been decoded.

    Returns:
        As ``parse``.

    Raises:
        InvalidRequest: a field is wrong or not supported.
    """
    try:
        return checking.check(table, fields)
    except Refusal as refusal:
        # Not a variable of this frame: the error leads to it, and it to the body.
        raise _invalid(refusal) from None


def _invalid(refusal: Refusal) -> InvalidRequest:
    error = InvalidRequest(refusal.message, param=refusal.param)
    error.code = refusal.code
    return error


def _object(body: bytes) -> dict[str, Any]:
    if has_too_many(body):
        raise InvalidRequest(TOO_MANY, code="invalid_json")
    if is_too_deep(body):
        field = field_too_deep(body)
        raise InvalidRequest(too_deep(field), param=field, code="invalid_json")
    try:
        _check_unique(body)
        value = _decode(body)
    except InvalidRequest:
        raise
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidRequest(f"the body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object", code="invalid_json")
    return value


def _check_unique(body: bytes) -> None:
    """See that no key comes twice; first, for what this makes is gone before the body is made."""
    try:
        _find_duplicates(body.decode().lstrip())
    except ValueError:
        _decode(body)  # says it in fewer words
        raise
