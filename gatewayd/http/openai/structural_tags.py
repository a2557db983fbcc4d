"""Structural tags in XGrammar's style: a ``format`` instead of triggers and structures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gatewayd.errors import InvalidRequest
from gatewayd_hooks.guiding import GuideSpec
from gatewayd_hooks.helpers.formats import TYPES

MAX_DEPTH = 16
"""Maximum nesting depth of formats."""
_LIMITS = ("excludes", "max_tokens", "max_chars", "any_order", "max_whitespace_cnt")
"""XGrammar's fields with further restrictions, which are not supported."""


def spec_of_format(found: object, param: str) -> GuideSpec:
    """Convert a request's ``format`` to a guide specification.

    Args:
        found: the request's ``format``.
        param: its path in the request, for errors.

    Raises:
        InvalidRequest: it is not a valid format, or not a supported one.
    """
    return _simplify(_read(found, param, 1))


def either(one: GuideSpec, other: GuideSpec) -> GuideSpec:
    """Combine two guide specifications to one that accepts either.

    Raises:
        ValueError, RecursionError: one of them contains invalid JSON.
    """
    elements = [_format_of(one), _format_of(other)]
    return GuideSpec("format", _json_text({"type": "or", "elements": elements}))


def _format_of(spec: GuideSpec) -> dict[str, Any]:
    match spec.form:
        case "json_object":
            return {"type": "json_schema", "json_schema": {"type": "object"}}
        case "json_schema":
            return {"type": "json_schema", "json_schema": msgspec.json.decode(spec.text)}
        case "regex":
            return {"type": "regex", "pattern": spec.text}
        case "grammar":
            return {"type": "grammar", "grammar": spec.text}
        case "choice":
            choices = msgspec.json.decode(spec.text)
            elements = [{"type": "const_string", "value": one} for one in choices]
            return {"type": "or", "elements": elements}
    found: dict[str, Any] = msgspec.json.decode(spec.text)
    if spec.form == "format":
        return found
    tags = [
        {
            "type": "tag",
            "begin": one["begin"],
            "content": {"type": "json_schema", "json_schema": one.get("schema", True)},
            "end": one.get("end", ""),
        }
        for one in found.pop("structures")
    ]
    kind = "tags_with_separator" if "separator" in found else "triggered_tags"
    return {"type": kind, **found, "tags": tags}


def _simplify(found: dict[str, Any]) -> GuideSpec:
    """Convert a format to the simplest equivalent guide specification."""
    match found:
        case {"type": "json_schema", "json_schema": schema}:
            return GuideSpec("json_schema", _json_text(schema))
        case {"type": "regex", "pattern": text}:
            return GuideSpec("regex", text)
        case {"type": "grammar", "grammar": text}:
            return GuideSpec("grammar", text)
        case {"type": "const_string", "value": text}:
            return GuideSpec("choice", _json_text([text]))
        case {"type": "or", "elements": elements} if _are(elements, "const_string"):
            return GuideSpec("choice", _json_text([one["value"] for one in elements]))
        case {"type": "triggered_tags" | "tags_with_separator", "tags": tags} if _are(
            [tag["content"] for tag in tags], "json_schema"
        ):
            spec = {key: found[key] for key in found if key not in ("type", "tags")}
            # Tags with a separator have no triggers: each begins with its own text.
            spec.setdefault("triggers", list(dict.fromkeys(tag["begin"] for tag in tags)))
            spec["structures"] = [
                {"begin": t["begin"], "schema": t["content"]["json_schema"], "end": t["end"]}
                for t in tags
            ]
            return GuideSpec("structural_tag", _json_text(spec))
    return GuideSpec("format", _json_text(found))


def _are(found: Sequence[dict[str, Any]], kind: str) -> bool:
    return all(one["type"] == kind for one in found)


def _read(found: object, param: str, depth: int) -> dict[str, Any]:
    """Validate a format and remove fields without effect."""
    kind = found.get("type") if isinstance(found, dict) else None
    if not isinstance(found, dict) or kind not in TYPES:
        raise InvalidRequest(
            f"{param} must be an object whose type is one of {', '.join(TYPES)}", param=param
        )
    if depth > MAX_DEPTH:
        raise InvalidRequest(f"{param} is deeper than {MAX_DEPTH} formats", param=param)
    for limit in _LIMITS:
        # Neutral values (null, false, 0, empty) restrict nothing.
        if found.get(limit):
            raise InvalidRequest(f"{param}.{limit} is not supported", param=f"{param}.{limit}")
    if found.get("style", "json") != "json":
        raise InvalidRequest(f"{param}.style must be json", param=f"{param}.style")
    read: dict[str, Any] = {"type": kind}
    match kind:
        case "json_schema":
            read["json_schema"] = _schema(found, param)
        case "regex":
            read["pattern"] = _string(found, "pattern", param)
        case "grammar":
            read["grammar"] = _string(found, "grammar", param)
        case "const_string":
            read["value"] = _string(found, "value", param)
        case "sequence" | "or":
            read["elements"] = [
                _read(one, f"{param}.elements[{i}]", depth + 1)
                for i, one in enumerate(_list(found, "elements", param))
            ]
        case "tag":
            read |= _tag(found, param, depth)
        case "triggered_tags" | "tags_with_separator":
            read |= _tags(found, kind, param, depth)
    return read


def _tags(found: Mapping[str, Any], kind: str, param: str, depth: int) -> dict[str, Any]:
    tags = []
    for i, one in enumerate(_list(found, "tags", param)):
        here = f"{param}.tags[{i}]"
        if not isinstance(one, dict):
            raise InvalidRequest(f"{here} must be an object", param=here)
        tags.append({"type": "tag", **_tag(one, here, depth + 1)})
    read = {key: found.get(key, False) for key in ("at_least_one", "stop_after_first")}
    if kind == "tags_with_separator":
        return {**read, "tags": tags, "separator": _string(found, "separator", param)}
    return {**read, "tags": tags, "triggers": _list(found, "triggers", param)}


def _tag(found: Mapping[str, Any], param: str, depth: int) -> dict[str, Any]:
    ends = found.get("end", "")
    end = ends[0] if isinstance(ends, list) and len(ends) == 1 else ends
    if not isinstance(end, str):
        raise InvalidRequest(f"{param}.end must be one string", param=f"{param}.end")
    content = _read(found.get("content"), f"{param}.content", depth + 1)
    return {"begin": _string(found, "begin", param), "content": content, "end": end}


def _schema(found: Mapping[str, Any], param: str) -> dict[str, Any] | bool:
    schema = found.get("json_schema")
    if not isinstance(schema, dict | bool):
        raise InvalidRequest(f"{param}.json_schema must be a schema", param=f"{param}.json_schema")
    return schema


def _string(found: Mapping[str, Any], key: str, param: str) -> str:
    value = found.get(key)
    if not isinstance(value, str):
        raise InvalidRequest(f"{param}.{key} must be a string", param=f"{param}.{key}")
    return value


def _list(found: Mapping[str, Any], key: str, param: str) -> list[Any]:
    value = found.get(key)
    if not isinstance(value, list) or not value:
        raise InvalidRequest(f"{param}.{key} must be a non-empty list", param=f"{param}.{key}")
    return value


def _json_text(value: Any) -> str:  # noqa: ANN401 - JSON
    return msgspec.json.encode(value).decode()
