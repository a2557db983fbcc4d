"""From the fields of structured output, in everybody's spelling, to one ``GuideSpec``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from gatewayd.errors import InvalidRequest
from gatewayd.http.openai.structural_tags import spec_of_format
from gatewayd.http.schema.structured import (
    ResponseFormat,
    StructuredOutputs,
    StructuredTable,
    TagStructure,
)
from gatewayd_hooks.guiding import GuideForm, GuideSpec

_SPELLINGS: tuple[tuple[str, str], ...] = (
    ("guided_json", "json"),
    ("guided_regex", "regex"),
    ("guided_choice", "choice"),
    ("guided_grammar", "grammar"),
    ("json_schema", "json"),
    ("regex", "regex"),
    ("ebnf", "grammar"),
    ("grammar", "grammar"),
)
"""Other spellings, and which key of ``structured_outputs`` each is."""
_KEYS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")


class Wish(NamedTuple):
    """What an answer is to follow.

    Attributes:
        spec: itself.
        param: the field that asks for it.
        parts: makes what it consists of, and the field of each, to find the one that cannot be
            kept; None where it is one.
    """

    spec: GuideSpec
    param: str
    parts: Callable[[], Sequence[tuple[GuideSpec, str]]] | None = None


def wish_of(request: StructuredTable) -> Wish | None:
    """What a request's answer is to follow; None for free text.

    Raises:
        InvalidRequest: it asks for two things at once, or for one that cannot be read.
    """
    wishes = []
    if request.response_format is not None:
        wishes += _of_format(request.response_format)
    if request.structured_outputs is not None:
        wishes.append(_of_outputs(request.structured_outputs))
    for field, key in _SPELLINGS:
        value = getattr(request, field)
        if value is not None:
            wishes.append(_wish(key, value, field))
    if len(wishes) > 1:
        first, second = wishes[0].param, wishes[1].param
        raise InvalidRequest(
            f"{first} and {second} both constrain the answer; give one of them",
            param=second,
        )
    return wishes[0] if wishes else None


def json_schema(schema: Any) -> GuideSpec:  # noqa: ANN401 - a schema is an object or a boolean
    """What an answer follows that fits a JSON Schema."""
    return GuideSpec("json_schema", _spelled(schema))


def _of_format(wanted: ResponseFormat) -> list[Wish]:
    here = "response_format"
    match wanted.type:
        case "text":
            return []
        case "json_object" if wanted.schema_ is None:
            return [Wish(GuideSpec("json_object", ""), here)]
        case "json_object":
            return [Wish(json_schema(wanted.schema_), f"{here}.schema")]
        case "json_schema":
            if wanted.json_schema is None or wanted.json_schema.schema_ is None:
                if wanted.schema_ is not None:
                    return [Wish(json_schema(wanted.schema_), f"{here}.schema")]
                raise _required(f"{here}.json_schema.schema")
            return [Wish(json_schema(wanted.json_schema.schema_), f"{here}.json_schema.schema")]
        case "structural_tag":
            if wanted.format is not None:
                return [Wish(spec_of_format(wanted.format, f"{here}.format"), f"{here}.format")]
            if wanted.structures is None:
                raise _required(f"{here}.structures")
            if wanted.triggers is None:
                raise _required(f"{here}.triggers")
            return [Wish(_tags(wanted.structures, wanted.triggers), here)]
    if wanted.value is None:
        raise _required(f"{here}.value")
    return [_wish(wanted.type, wanted.value, f"{here}.value")]


def _of_outputs(wanted: StructuredOutputs) -> Wish:
    here = "structured_outputs"
    for name in ("disable_additional_properties", "whitespace_pattern"):
        if getattr(wanted, name):
            raise InvalidRequest(
                f"{here}.{name} is not supported: put it into the schema or the grammar",
                param=f"{here}.{name}",
                code="unsupported_parameter",
            )
    given = {key: getattr(wanted, "json_" if key == "json" else key) for key in _KEYS}
    given = {key: value for key, value in given.items() if value is not None and value is not False}
    if len(given) != 1:
        has = f"has {' and '.join(given)}" if given else "is empty"
        raise InvalidRequest(
            f"{here} {has}; it needs exactly one of {', '.join(_KEYS)}", param=here
        )
    ((key, value),) = given.items()
    wish = _wish(key, value, f"{here}.{key}")
    return wish._replace(spec=wish.spec._replace(is_compact=wanted.disable_any_whitespace))


def _wish(key: str, value: Any, param: str) -> Wish:  # noqa: ANN401 - what its field holds
    match key:
        case "json":
            return Wish(json_schema(_object(value, param)), param)
        case "json_object":
            return Wish(GuideSpec("json_object", ""), param)
        case "choice":
            return Wish(GuideSpec("choice", _spelled(value)), param)
        case "structural_tag":
            return Wish(_tags_of(_object(value, param), param), param)
    if not isinstance(value, str):
        raise InvalidRequest(f"{param} must be a string", param=param, code="invalid_type")
    form: GuideForm = "regex" if key == "regex" else "grammar"
    return Wish(GuideSpec(form, value), param)


def _tags_of(tag: dict[str, Any], param: str) -> GuideSpec:
    if "format" in tag:
        return spec_of_format(tag["format"], f"{param}.format")
    try:
        wanted = ResponseFormat.model_validate({"type": "structural_tag", **tag})
    except ValueError:
        wanted = None
    if wanted is None or wanted.structures is None or wanted.triggers is None:
        raise InvalidRequest(
            f"{param} needs structures, each with begin, schema and end, and triggers", param=param
        )
    return _tags(wanted.structures, wanted.triggers)


def _tags(structures: list[TagStructure], triggers: list[str]) -> GuideSpec:
    told = [{"begin": one.begin, "schema": one.schema_, "end": one.end} for one in structures]
    return GuideSpec("structural_tag", _spelled({"triggers": triggers, "structures": told}))


def _object(value: Any, param: str) -> dict[str, Any]:  # noqa: ANN401 - an object or its text
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except RecursionError:
            raise InvalidRequest(
                f"{param} is nested too deeply: objects and arrays may be in each other about 900 "
                "times",
                param=param,
            ) from None
        except (msgspec.DecodeError, ValueError) as error:
            raise InvalidRequest(f"{param} is not JSON: {error}", param=param) from None
    if not isinstance(value, dict):
        raise InvalidRequest(f"{param} must be a JSON object", param=param, code="invalid_type")
    return value


def _spelled(value: Any) -> str:  # noqa: ANN401 - JSON
    return msgspec.json.encode(value).decode()


def _required(param: str) -> InvalidRequest:
    return InvalidRequest(f"{param} is required", param=param, code="missing_required_parameter")
