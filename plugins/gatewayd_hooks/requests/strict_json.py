"""Bodies of requests as JSON objects, for all APIs: strict, within limits, before they are checked.

Refused where JSON parsers differ: NaN, infinities, duplicate keys, bad UTF-8, lone surrogates.
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
        Refusal: it is no JSON object, has too many values, is nested too deeply, or has a key
            twice.
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
    """See that no key comes twice; first, for what this makes is gone before the body is made."""
    try:
        _find_duplicates(body.decode().lstrip())
    except ValueError:
        _decode(body)  # says it in fewer words
        raise


def _unique(pairs: list[tuple[str, Any]]) -> None:
    """Refuse a key that comes twice: two parsers would read two different requests."""
    if len(dict(pairs)) == len(pairs):
        return
    seen = set()
    for key, _ in pairs:
        if key in seen:
            raise RequestRefusal(
                400, f"the key {key[:64]!r} comes twice", param=key[:64], code="invalid_json"
            )
        seen.add(key)


_find_duplicates = json.JSONDecoder(object_pairs_hook=_unique).raw_decode
"""msgspec keeps the last of two equal keys and says nothing."""
