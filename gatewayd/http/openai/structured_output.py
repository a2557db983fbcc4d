"""Conversion of structured-output fields of several APIs to a ``GuideSpec``."""

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
"""Alternative fields, and the key of ``structured_outputs`` that each corresponds to."""
_FIELDS = frozenset(StructuredTable.model_fields)
_KEYS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")


class OutputConstraint(NamedTuple):
    """Constraint on the output of a request.

    Attributes:
        spec: guide specification.
        param: the field that sets it.
        parts: returns its components with their fields, to find the one that cannot be compiled;
            None if it has only one.
    """

    spec: GuideSpec
    param: str
    parts: Callable[[], Sequence[tuple[GuideSpec, str]]] | None = None


def output_constraint(request: StructuredTable) -> OutputConstraint | None:
    """Return the constraint on a request's output; None for unconstrained text.

    Raises:
        InvalidRequest: there are two constraints, or one is malformed.
    """
    # Most requests have none of the fields.
    if request.model_fields_set.isdisjoint(_FIELDS):
        return None
    constraints = []
    if request.response_format is not None:
        constraints += _of_format(request.response_format)
    if request.structured_outputs is not None:
        constraints.append(_of_outputs(request.structured_outputs))
    for field, key in _SPELLINGS:
        value = getattr(request, field)
        if value is not None:
            constraints.append(_constraint(key, value, field))
    if len(constraints) > 1:
        first, second = constraints[0].param, constraints[1].param
        raise InvalidRequest(
            f"{first} and {second} both constrain the answer; give one of them",
            param=second,
        )
    return constraints[0] if constraints else None


def json_schema(schema: Any) -> GuideSpec:  # noqa: ANN401 - a schema is an object or a boolean
    """Return the guide specification of a JSON Schema."""
    return GuideSpec("json_schema", _json_text(schema))


def _of_format(wanted: ResponseFormat) -> list[OutputConstraint]:
    here = "response_format"
    match wanted.type:
        case "text":
            return []
        case "json_object" if wanted.schema_ is None:
            return [OutputConstraint(GuideSpec("json_object", ""), here)]
        case "json_object":
            return [OutputConstraint(json_schema(wanted.schema_), f"{here}.schema")]
        case "json_schema":
            if wanted.json_schema is None or wanted.json_schema.schema_ is None:
                if wanted.schema_ is not None:
                    return [OutputConstraint(json_schema(wanted.schema_), f"{here}.schema")]
                raise _required(f"{here}.json_schema.schema")
            return [
                OutputConstraint(
                    json_schema(wanted.json_schema.schema_), f"{here}.json_schema.schema"
                )
            ]
        case "structural_tag":
            if wanted.format is not None:
                return [
                    OutputConstraint(
                        spec_of_format(wanted.format, f"{here}.format"), f"{here}.format"
                    )
                ]
            if wanted.structures is None:
                raise _required(f"{here}.structures")
            if wanted.triggers is None:
                raise _required(f"{here}.triggers")
            return [OutputConstraint(_tags(wanted.structures, wanted.triggers), here)]
    if wanted.value is None:
        raise _required(f"{here}.value")
    return [_constraint(wanted.type, wanted.value, f"{here}.value")]


def _of_outputs(wanted: StructuredOutputs) -> OutputConstraint:
    here = "structured_outputs"
    for name in ("disable_additional_properties", "whitespace_pattern"):
        if getattr(wanted, name):
            raise InvalidRequest(
                f"{here}.{name} is not supported: put it into the schema or the grammar",
                param=f"{here}.{name}",
                code="unsupported_parameter",
            )
    given = {key: getattr(wanted, "json_" if key == "json" else key) for key in _KEYS}
    # `json_object` false is the same as none.
    given = {key: value for key, value in given.items() if value is not None and value is not False}
    if len(given) != 1:
        has = f"has {' and '.join(given)}" if given else "is empty"
        raise InvalidRequest(
            f"{here} {has}; it needs exactly one of {', '.join(_KEYS)}", param=here
        )
    ((key, value),) = given.items()
    constraint = _constraint(key, value, f"{here}.{key}")
    return constraint._replace(
        spec=constraint.spec._replace(is_compact=wanted.disable_any_whitespace)
    )


def _constraint(key: str, value: Any, param: str) -> OutputConstraint:  # noqa: ANN401 - what its field holds
    match key:
        case "json":
            return OutputConstraint(json_schema(_object(value, param)), param)
        case "json_object":
            return OutputConstraint(GuideSpec("json_object", ""), param)
        case "choice":
            return OutputConstraint(GuideSpec("choice", _json_text(value)), param)
        case "structural_tag":
            return OutputConstraint(_tags_of(_object(value, param), param), param)
    if not isinstance(value, str):
        raise InvalidRequest(f"{param} must be a string", param=param, code="invalid_type")
    form: GuideForm = "regex" if key == "regex" else "grammar"
    return OutputConstraint(GuideSpec(form, value), param)


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
    tags = [{"begin": one.begin, "schema": one.schema_, "end": one.end} for one in structures]
    return GuideSpec("structural_tag", _json_text({"triggers": triggers, "structures": tags}))


def _object(value: Any, param: str) -> dict[str, Any]:  # noqa: ANN401 - an object or its text
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except RecursionError:
            raise InvalidRequest(
                f"{param} is nested too deeply: objects and arrays may be nested about 900 levels "
                "deep",
                param=param,
            ) from None
        except (msgspec.DecodeError, ValueError) as error:
            raise InvalidRequest(f"{param} is not JSON: {error}", param=param) from None
    if not isinstance(value, dict):
        raise InvalidRequest(f"{param} must be a JSON object", param=param, code="invalid_type")
    return value


def _json_text(value: Any) -> str:  # noqa: ANN401 - JSON
    return msgspec.json.encode(value).decode()


def _required(param: str) -> InvalidRequest:
    return InvalidRequest(f"{param} is required", param=param, code="missing_required_parameter")
