"""Structural tags as XGrammar writes them: a ``format`` instead of triggers and structures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gatewayd.errors import InvalidRequest
from gatewayd_hooks.guiding import GuideSpec

_TYPES = (
    "triggered_tags",
    "tags_with_separator",
    "tag",
    "json_schema",
    "const_string",
    "or",
    "regex",
    "grammar",
)


def spec_of_format(found: object, param: str) -> GuideSpec:
    """What an answer follows that has a format.

    Args:
        found: the request's ``format``.
        param: its place, for errors.

    Raises:
        InvalidRequest: it is none, or none that is known.
    """
    kind = found.get("type") if isinstance(found, dict) else None
    if not isinstance(found, dict) or kind not in _TYPES:
        raise InvalidRequest(
            f"{param} must be an object whose type is one of {', '.join(_TYPES)}", param=param
        )
    match kind:
        case "json_schema":
            return GuideSpec("json_schema", _spelled(_schema(found, param)))
        case "regex":
            return GuideSpec("regex", _string(found, "pattern", param))
        case "grammar":
            return GuideSpec("grammar", _string(found, "grammar", param))
        case "const_string":
            return GuideSpec("choice", _spelled([_string(found, "value", param)]))
        case "or":
            return GuideSpec("choice", _spelled(_strings(found, param)))
        case "tag":
            told = {"separator": "", "at_least_one": True, "stop_after_first": True}
            return _tags([_structure(found, param)], told)
    structures = [
        _structure(one, f"{param}.tags[{i}]") for i, one in enumerate(_list(found, "tags", param))
    ]
    told = {key: found.get(key, False) for key in ("at_least_one", "stop_after_first")}
    if kind == "tags_with_separator":
        return _tags(structures, {**told, "separator": _string(found, "separator", param)})
    if found.get("excludes"):
        raise InvalidRequest(f"{param}.excludes is not supported", param=f"{param}.excludes")
    return _tags(structures, {**told, "triggers": _list(found, "triggers", param)})


def _tags(structures: Sequence[Mapping[str, Any]], told: Mapping[str, Any]) -> GuideSpec:
    begins = list(dict.fromkeys(one["begin"] for one in structures))
    spec = {"triggers": begins, "structures": structures, **told}
    return GuideSpec("structural_tag", _spelled(spec))


def _structure(found: object, param: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise InvalidRequest(f"{param} must be an object", param=param)
    content = found.get("content")
    if not isinstance(content, dict) or content.get("type") != "json_schema":
        raise InvalidRequest(
            f"{param}.content must be an object whose type is json_schema",
            param=f"{param}.content",
        )
    ends = found.get("end", "")
    end = ends[0] if isinstance(ends, list) and len(ends) == 1 else ends
    if not isinstance(end, str):
        raise InvalidRequest(f"{param}.end must be one string", param=f"{param}.end")
    schema = _schema(content, f"{param}.content")
    return {"begin": _string(found, "begin", param), "schema": schema, "end": end}


def _schema(found: Mapping[str, Any], param: str) -> dict[str, Any] | bool:
    schema = found.get("json_schema")
    if not isinstance(schema, dict | bool):
        raise InvalidRequest(f"{param}.json_schema must be a schema", param=f"{param}.json_schema")
    return schema


def _strings(found: Mapping[str, Any], param: str) -> list[str]:
    """The strings of an ``or`` of constant strings."""
    strings = []
    for i, one in enumerate(_list(found, "elements", param)):
        here = f"{param}.elements[{i}]"
        if not isinstance(one, dict) or one.get("type") != "const_string":
            raise InvalidRequest(f"{here} must be an object whose type is const_string", param=here)
        strings.append(_string(one, "value", here))
    return strings


def _string(found: Mapping[str, Any], key: str, param: str) -> str:
    value = found.get(key)
    if not isinstance(value, str):
        raise InvalidRequest(f"{param}.{key} must be a string", param=f"{param}.{key}")
    return value


def _list(found: Mapping[str, Any], key: str, param: str) -> list[Any]:
    value = found.get(key)
    if not isinstance(value, list) or not value:
        raise InvalidRequest(f"{param}.{key} must be a list, not empty", param=f"{param}.{key}")
    return value


def _spelled(value: Any) -> str:  # noqa: ANN401 - JSON
    return msgspec.json.encode(value).decode()
