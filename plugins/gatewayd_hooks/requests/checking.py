"""Checks a request against its table; an error names the first invalid field and its limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gatewayd_hooks.requests.refusal import RequestRefusal
from gatewayd_hooks.requests.tables import RequestTable
from gatewayd_hooks.requests.unserved import unserved

TableT = TypeVar("TableT", bound=RequestTable)


def check(table: type[TableT], fields: dict[str, Any]) -> tuple[TableT, list[str]]:
    """Check the fields of a body.

    Args:
        table: of the request.
        fields: of the body, as ``HttpRequest.json`` returns them.

    Returns:
        The request, and the paths of fields that have no effect, for ``HttpResponse.ignored``.

    Raises:
        Refusal: a field is invalid or not supported.
    """
    try:
        request = table.model_validate(fields)
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False)) from None
    return request, unserved(request, fields)


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
"""Further allowed types of fields that are otherwise one of some literals."""

_REMEDIES = {"top_p": ": for the most likely token alone set temperature to 0"}
"""Advice for fields that are not above their exclusive minimum."""

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
"""Types of message parts that other servers support."""


def _refusal(errors: Sequence[ErrorDetails]) -> RequestRefusal:
    """Return one sentence for the first invalid field; unsupported fields come first."""
    for error in errors:
        if error["type"] == "unsupported":
            path = _path(error["loc"])
            sentence = f"{path} is not supported: {error['msg']}"
            return RequestRefusal(400, sentence, param=path, code="unsupported_parameter")
    field = errors[0]["loc"][0] if errors[0]["loc"] else None
    mine = [error for error in errors if error["loc"][:1] == (field,)]
    # A union reports every alternative. The most informative error is that of an alternative which
    # fits except for a bound; among those that do not fit, the one that was matched furthest.
    best = next(
        (error for error in mine if error["type"] not in _EXPECTED),
        max(mine, key=lambda error: _path(error["loc"]).count("[")),
    )
    path = _path(best["loc"])
    if best["type"] not in _EXPECTED:
        # If something within an object is invalid, the client did not mean a literal.
        within = [one for one in mine if _path(one["loc"]).startswith((f"{path}.", f"{path}["))]
        best = next((one for one in within if one["type"] not in _EXPECTED), best)
        path = _path(best["loc"])
    if best["type"] in _EXPECTED:
        same = [error["type"] for error in mine if _path(error["loc"]) == path]
        expected = " or ".join(dict.fromkeys(_EXPECTED[kind] for kind in same))
        sentence = f"{path} must be {expected}, not {_show(best['input'])}"
        return RequestRefusal(400, sentence, param=path, code="invalid_type")
    if best["type"] == "unknown_type":
        return _of_type(path, best)
    sentence = _sentence(path, best)
    if best["type"] == "literal_error" and path not in _FORMS:
        here = [one["type"] for one in mine if _path(one["loc"]) == path]
        kinds = [_EXPECTED[kind] for kind in here if kind in _EXPECTED]
        sentence += "".join(f", or {kind}" for kind in dict.fromkeys(kinds))
    if best["type"] == "missing":
        return RequestRefusal(400, sentence, param=path, code="missing_required_parameter")
    return RequestRefusal(400, sentence, param=path)


def _of_type(path: str, error: ErrorDetails) -> RequestRefusal:
    """Return the refusal of a value that is no object, or an object of an unknown type."""
    value, context = error["input"], error.get("ctx", {})
    if not isinstance(value, dict):
        sentence = f"{path} must be an object, not {_show(value)}"
        return RequestRefusal(400, sentence, param=path, code="invalid_type")
    key, words = context["key"], context["words"]
    place, word = f"{path}.{key}", value.get(key)
    if word is None:
        sentence = f"{place} is required: {words}"
        return RequestRefusal(400, sentence, param=place, code="missing_required_parameter")
    reason = context.get(f"reason of {word}")
    if reason is None and word in _NO_TEXT:
        reason = "which this model cannot read: send text"
    sentence = f"{place} is {_show(word)}{f', {reason}' if reason else f'; it must be {words}'}"
    return RequestRefusal(400, sentence, param=place)


def _sentence(path: str, error: ErrorDetails) -> str:
    context: Mapping[str, Any] = error.get("ctx", {})
    shown = _show(error["input"])
    match error["type"]:
        case "missing":
            return f"{path} is required"
        case "greater_than_equal":
            return f"{path} is {shown}; the minimum is {context['ge']}"
        case "greater_than":
            remedy = _REMEDIES.get(path.rpartition(".")[2], "")
            return f"{path} is {shown}; it must be greater than {context['gt']:g}{remedy}"
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
    """Return ``messages[0].content``, without pydantic's names of a union's alternatives."""
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
            # A key that is a number, such as a token of `logit_bias`.
            path += f".{part[:16]}"
    return path


def _show(value: object) -> str:
    """Return a value as short JSON."""
    try:
        shown = msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError):
        shown = type(value).__name__
    return shown if len(shown) <= 60 else shown[:57] + "..."
