"""Decodes request bodies as JSON objects, strictly and within limits, for all APIs.

Refuses what JSON parsers interpret differently: NaN, infinities, duplicate keys, bad UTF-8, lone
surrogates.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from gatewayd_hooks.requests.nesting import field_too_deep, is_too_deep, too_deep
from gatewayd_hooks.requests.num_values import TOO_MANY, has_too_many
from gatewayd_hooks.requests.refusal import RequestRefusal

_decode = msgspec.json.Decoder().decode


def decode_object(body: bytes) -> dict[str, Any]:
    """Decode a body.

    Raises:
        Refusal: it is no JSON object, has too many values, is nested too deeply, or has a duplicate
            key.
    """
    if has_too_many(body):
        raise RequestRefusal(400, TOO_MANY, code="invalid_json")
    if is_too_deep(body):
        field = field_too_deep(body)
        raise RequestRefusal(400, too_deep(field), param=field, code="invalid_json")
    try:
        _check_unique(body)
        value = _decode(body)
    except (msgspec.DecodeError, ValueError) as error:
        raise RequestRefusal(400, f"the body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise RequestRefusal(400, "the body must be a JSON object", code="invalid_json")
    return value


def _check_unique(body: bytes) -> None:
    """Check that no key is duplicated; first, so that its temporaries are freed before decoding."""
    try:
        # `raw_decode` does not skip whitespace at the beginning; what follows is checked by
        # msgspec.
        _find_duplicates(body.decode().lstrip())
    except ValueError:
        _decode(body)  # its message is shorter
        raise


def _unique(pairs: list[tuple[str, Any]]) -> None:
    """Refuse a duplicate key: two parsers would read two different requests."""
    # None in place of each object, so that the parsed document is not kept in memory.
    if len(dict(pairs)) == len(pairs):
        return
    seen = set()
    for key, _ in pairs:
        if key in seen:
            raise RequestRefusal(
                400, f"the key {key[:64]!r} is repeated", param=key[:64], code="invalid_json"
            )
        seen.add(key)


_find_duplicates = json.JSONDecoder(object_pairs_hook=_unique).raw_decode
"""Needed because msgspec silently uses the last of two equal keys."""
