"""Conversion of conversation items from requests to their stored form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from gatewayd.errors import InvalidRequest
from gatewayd.http.schema.responses import InputItem, ItemPart
from gatewayd.store.ids import new_id

_PREFIXES = {
    "message": "msg_",
    "function_call": "fc_",
    "function_call_output": "fco_",
    "reasoning": "rs_",
}
_NONE: Mapping[str, dict[str, Any]] = MappingProxyType({})


def referenced_ids(given: str | Sequence[InputItem] | None) -> dict[str, str]:
    """Ids of stored items that an input references, each with its field."""
    if not isinstance(given, Sequence) or isinstance(given, str):
        return {}
    named = [(at, one.id) for at, one in enumerate(given) if one.type == "item_reference"]
    return {item_id: f"input[{at}].id" for at, item_id in named if item_id is not None}


def references(given: str | Sequence[InputItem] | None) -> list[str]:
    """The same ids, with repetitions."""
    if not isinstance(given, Sequence) or isinstance(given, str):
        return []
    return [one.id for one in given if one.type == "item_reference" and one.id is not None]


def size_of(given: str | Sequence[InputItem] | None) -> int:
    """Number of items and parts of an input."""
    if given is None or isinstance(given, str):
        return 1
    return len(given) + sum([len(p) for one in given for p in _lists(one)])


def _lists(item: InputItem) -> list[Sequence[ItemPart]]:
    fields = (item.content, item.output, item.summary)
    return [field for field in fields if field is not None and not isinstance(field, str)]


def stored_items(
    given: str | Sequence[InputItem] | None, stored: Mapping[str, dict[str, Any]] = _NONE
) -> list[dict[str, Any]]:
    """Convert an input to its stored form, each item with an id.

    Args:
        given: the input.
        stored: the referenced items, by id.

    Raises:
        InvalidRequest: an item lacks a required field of its type.
    """
    if given is None:
        return []
    # Stored as an item, so that it has an id for lists of input items.
    if isinstance(given, str):
        given = [InputItem(role="user", content=given)]
    found = []
    ids: set[str] = set()
    for at, item in enumerate(given):
        if (missing := item.missing) is not None:
            raise InvalidRequest(
                f"input[{at}].{missing} is required where the type is {item.type}",
                param=f"input[{at}].{missing}",
                code="missing_required_parameter",
            )
        # Lists are paged by ids: a repeated id would return its page again and again.
        item_id = item.id if item.id not in ids else None
        named = stored[str(item.id)] if item.type == "item_reference" else None
        found.append(_kept(item, item_id) if named is None else _again(named, item_id))
        ids.add(found[-1]["id"])
    return found


def _kept(item: InputItem, item_id: str | None) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": item_id or new_id(_PREFIXES[item.type]),
        "type": item.type,
        "status": item.status or "completed",
    }
    match item.type:
        case "message":
            is_output = item.role == "assistant"
            kind = "output_text" if is_output else "input_text"
            parts = [_part(one, kind) for one in _parts(item.content or "")]
            return {**shown, "role": item.role, "content": parts}
        case "function_call":
            named = {"call_id": item.call_id, "name": item.name, "arguments": item.arguments}
            return {**shown, **named}
        case "function_call_output":
            output = item.output
            if not isinstance(output, str):
                output = "".join(part.text or "" for part in output or ())
            return {**shown, "call_id": item.call_id, "output": output}
    # Reasoning, the only type that is left.
    thought = [_part(one, "reasoning_text") for one in _parts(item.content or [])]
    summary = [{"type": "summary_text", "text": one.text or ""} for one in item.summary or ()]
    return {**shown, "summary": summary, "content": thought}


def _again(stored: dict[str, Any], item_id: str | None) -> dict[str, Any]:
    return {**stored, "id": item_id or new_id(_PREFIXES[stored["type"]])}


def _parts(content: str | Sequence[ItemPart]) -> Sequence[ItemPart]:
    return [ItemPart(type="text", text=content)] if isinstance(content, str) else content


def _part(part: ItemPart, kind: str) -> dict[str, Any]:
    if part.type == "refusal":
        return {"type": "refusal", "refusal": part.refusal or ""}
    shown: dict[str, Any] = {"type": kind, "text": part.text or ""}
    return {**shown, "annotations": []} if kind == "output_text" else shown
