"""Bytes to a checked request: strict JSON, then the table of fields.

Refused where JSON parsers differ: NaN, infinities, duplicate keys, bad UTF-8, lone surrogates.
The first thing wrong is named with its place, its value and its limit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gatewayd.errors import InvalidRequest
from gatewayd.http import collecting
from gatewayd.http.schema.fields import RequestTable
from gatewayd.http.unserved import unserved
from gatewayd_hooks.nesting import field_too_deep, too_deep

TableT = TypeVar("TableT", bound=RequestTable)

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
    with collecting.held():
        return _parse(table, body)


def _parse(table: type[TableT], body: bytes) -> tuple[TableT, list[str]]:
    return check(table, _object(body))


def check(table: type[TableT], fields: dict[str, Any]) -> tuple[TableT, list[str]]:
    """Check a body that has been decoded.

    Returns:
        As ``parse``.

    Raises:
        InvalidRequest: a field is wrong or not supported.
    """
    for name, mark in table.unsupported.items():
        if name in fields and fields[name] not in mark.neutral:
            raise InvalidRequest(
                f"{name} is not supported: {mark.reason}",
                param=name,
                code="unsupported_parameter",
            )
    try:
        request = table.model_validate(fields)
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False)) from None
    return request, unserved(request, fields)


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = _decode(body)
        _find_duplicates(body.decode().lstrip())
    except InvalidRequest:
        raise
    except RecursionError:
        field = field_too_deep(body)
        raise InvalidRequest(too_deep(field), param=field, code="invalid_json") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidRequest(f"the body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object", code="invalid_json")
    return value


_EXPECTED = {
    "string_type": "a string",
    "int_type": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "prompt_type": "a string or a list",
}


_FORMS = {"tool_choice": ", or an object of type 'function' or 'allowed_tools'"}
"""What fields may be beside words."""

_NO_TEXT = (
    "image_url",
    "image",
    "input_image",
    "input_audio",
    "audio_url",
    "video_url",
    "file",
    "input_file",
)
"""Types of parts that other servers know."""


def _refusal(errors: Sequence[ErrorDetails]) -> InvalidRequest:
    """One sentence for the first field at fault."""
    field = errors[0]["loc"][0] if errors[0]["loc"] else None
    mine = [error for error in errors if error["loc"][:1] == (field,)]
    # A union reports every alternative. The one that fits but for a bound says most, and of
    # those that do not fit, the one that got furthest.
    best = next(
        (error for error in mine if error["type"] not in _EXPECTED),
        max(mine, key=lambda error: _path(error["loc"]).count("[")),
    )
    path = _path(best["loc"])
    if best["type"] not in _EXPECTED:
        # A word was not meant where something within an object is wrong.
        within = [one for one in mine if _path(one["loc"]).startswith((f"{path}.", f"{path}["))]
        best = next((one for one in within if one["type"] not in _EXPECTED), best)
        path = _path(best["loc"])
    if best["type"] in _EXPECTED:
        same = [error["type"] for error in mine if _path(error["loc"]) == path]
        expected = " or ".join(dict.fromkeys(_EXPECTED[kind] for kind in same))
        sentence = f"{path} must be {expected}, not {_show(best['input'])}"
        return InvalidRequest(sentence, param=path, code="invalid_type")
    sentence = _sentence(path, best)
    if best["type"] == "missing":
        return InvalidRequest(sentence, param=path, code="missing_required_parameter")
    return InvalidRequest(sentence, param=path)


def _sentence(path: str, error: ErrorDetails) -> str:
    context: Mapping[str, Any] = error.get("ctx", {})
    shown = _show(error["input"])
    match error["type"]:
        case "missing":
            return f"{path} is required"
        case "greater_than_equal":
            return f"{path} is {shown}; the minimum is {context['ge']}"
        case "greater_than":
            return f"{path} is {shown}; it must be greater than {context['gt']}"
        case "less_than_equal":
            return f"{path} is {shown}; the maximum is {context['le']}"
        case "too_long":
            return f"{path} has more entries than the maximum of {context['max_length']}"
        case "too_short":
            return f"{path} is empty; it needs at least {context['min_length']} entry"
        case "string_too_long":
            return f"{path} is longer than the maximum of {context['max_length']} characters"
        case "string_too_short":
            return f"{path} is empty; it needs at least {context['min_length']} character"
        case "string_pattern_mismatch":
            return f"{path} is {shown}; it must match {context['pattern']}"
        case "literal_error" if error["input"] in _NO_TEXT and path.endswith(".type"):
            return f"{path} is {shown}, which this model cannot read: send text"
        case "literal_error":
            forms = _FORMS.get(path, "")
            return f"{path} is {shown}; it must be {context['expected']}{forms}"
        case "finite_number":
            return f"{path} must be a finite number"
    return f"{path}: {error['msg']}"


def _path(location: tuple[int | str, ...]) -> str:
    """``messages[0].content`` without the names pydantic gives to a union's alternatives."""
    path, is_tag = "", False
    for part in location:
        if is_tag:
            is_tag = False
        elif isinstance(part, int):
            path += f"[{part}]"
        elif not path:
            path = part[:64]
        elif part.startswith("tagged-union["):
            is_tag = True  # which alternative it is comes next
        elif part.isidentifier() and part not in ("str", "int", "float", "bool"):
            path += f".{part}"
        elif part.lstrip("-").isdigit():
            path += f".{part[:16]}"
    return path


def _show(value: object) -> str:
    """A value as JSON, short."""
    try:
        shown = msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError):
        shown = type(value).__name__
    return shown if len(shown) <= 60 else shown[:57] + "..."
