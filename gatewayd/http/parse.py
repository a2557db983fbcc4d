"""Parsing and validation of request bodies: strict JSON, then the request's schema."""

from __future__ import annotations

from typing import Any, TypeVar

from gatewayd.errors import InvalidRequest
from gatewayd.http import body_threads
from gatewayd_hooks.requests import checking
from gatewayd_hooks.requests.refusal import RequestRefusal
from gatewayd_hooks.requests.strict_json import decode_object
from gatewayd_hooks.requests.tables import RequestTable

TableT = TypeVar("TableT", bound=RequestTable)

_SMALL_BYTES = 16 * 1024
"""Maximum size of bodies parsed with the garbage collector enabled, as they create few objects."""


def parse(table: type[TableT], body: bytes) -> tuple[TableT, list[str]]:
    """Parse and validate a body.

    Returns:
        The request, and the names of fields that were accepted but ignored.

    Raises:
        InvalidRequest: it is not JSON, or a field is invalid or not supported.
    """
    if len(body) <= _SMALL_BYTES:
        return check(table, _object(body))
    with body_threads.gc_paused():
        return check(table, _object(body))


def check(table: type[TableT], fields: dict[str, Any]) -> tuple[TableT, list[str]]:
    """Validate a decoded body.

    Returns:
        As ``parse``.

    Raises:
        InvalidRequest: a field is invalid or not supported.
    """
    try:
        return checking.check(table, fields)
    except RequestRefusal as refusal:
        # Not stored in a local variable, as the error's traceback would keep the body alive.
        raise _invalid(refusal) from None


def _invalid(refusal: RequestRefusal) -> InvalidRequest:
    error = InvalidRequest(refusal.message, param=refusal.param)
    error.code = refusal.code
    return error


def _object(body: bytes) -> dict[str, Any]:
    try:
        return decode_object(body)
    except RequestRefusal as refusal:
        raise _invalid(refusal) from None
