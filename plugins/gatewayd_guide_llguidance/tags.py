"""Structural tags as Lark: free text, and structures that a trigger begins."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gatewayd_hooks.grammars import StructuralTag, Structure

_OTHER = r"[^a-zA-Z0-9 _=<>:;,]"


def lark_of(tag: StructuralTag, special: Mapping[str, int], options: Mapping[str, object]) -> str:
    """Write it.

    A mark that is a special token may be that token, or be spelled by others.

    Args:
        tag: it.
        special: contents of special tokens, and their ids.
        options: of JSON within it.
    """
    letters = "|".join(_escaped(trigger) for trigger in tag.triggers)
    # The shortest trigger that begins a structure is met first.
    triggers = [
        one
        for one in tag.triggers
        if not any(one != other and one.startswith(other) for other in tag.triggers)
    ]
    lines, items = [], []
    for number, trigger in enumerate(triggers):
        inner, heads = [], list[str]()
        for structure in tag.structures:
            if not structure.begin.startswith(trigger):
                continue
            body = _body(structure, special, options)
            inner.append(f"{_spelled(structure.begin[len(trigger) :], special)} {body}")
            if mark := _mark(structure.begin, trigger, special):
                rest = _spelled(structure.begin[len(mark) :], special)
                heads.append(f"<[{special[mark]}]> {rest} {body}")
        lines.append(f"head_{number}[lazy]: /(?s:.*)/ {json.dumps(trigger)}")
        lines.append(f"inner_{number}: {' | '.join(inner)}")
        items.append((f"head_{number} inner_{number}", f"{json.dumps(trigger)} inner_{number}"))
        items += [(f"TEXT {head}", head) for head in heads]
    behind = " | ".join(free for free, _ in items)
    first = " | ".join(bare for _, bare in items)
    begin = f"({first if tag.at_least_one else behind})"
    match tag.at_least_one, tag.stop_after_first:
        case must, single if tag.separator is not None:
            between = _spelled(tag.separator, special)
            more = "" if single else f" ({between} ({first}))*"
            start = f"(({first}){more}){'' if must else '?'}"
        case True, True:
            start = begin
        case True, False:
            start = f"{begin} (item)* TEXT"
        case False, True:
            start = f"{begin} | TEXT"
        case _:
            start = "(item)* TEXT"
    if "item" in start:
        lines.append(f"item: {behind}")
    if tag.otherwise is not None:
        start = f"{start} | otherwise"
        lines.append(f"otherwise: {_json(tag.otherwise, options)}")
    lines.append(f"TEXT: /(?s:.*)/ & ~/(?s:.*)({letters})(?s:.*)/")
    return "\n".join([f"start: {start}", *lines])


def _body(structure: Structure, special: Mapping[str, int], options: Mapping[str, object]) -> str:
    return f"{_json(structure.schema, options)} {_spelled(structure.end, special)}"


def _json(schema: dict[str, Any] | bool, options: Mapping[str, object]) -> str:
    inner = {**(schema if isinstance(schema, dict) else {}), "x-guidance": options}
    return f"%json {json.dumps(inner)}"


def _mark(begin: str, trigger: str, special: Mapping[str, int]) -> str:
    """The special token that begins a structure and is met no later than its trigger."""
    found = [one for one in special if begin.startswith(one) and one.startswith(trigger)]
    return max(found, key=len, default="")


def _spelled(text: str, special: Mapping[str, int]) -> str:
    """A text in which special tokens may stand for their contents."""
    contents = sorted((one for one in special if one in text), key=len, reverse=True)
    if not contents:
        return json.dumps(text, ensure_ascii=False) if text else ""
    parts = re.split(f"({'|'.join(map(re.escape, contents))})", text)
    return " ".join(
        f"({json.dumps(part)} | <[{special[part]}]>)" if part in special else json.dumps(part)
        for part in parts
        if part
    )


def _escaped(text: str) -> str:
    """A text as an expression, for Lark."""
    return re.sub(_OTHER, lambda found: f"\\x{{{ord(found[0]):x}}}", text)
