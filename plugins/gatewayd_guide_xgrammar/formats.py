"""Converts formats to XGrammar's structural tags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gatewayd_guide_xgrammar.expressions import check_counts, whole
from gatewayd_hooks.guiding import GrammarRefused, GuideSpec
from gatewayd_hooks.helpers import formats
from gatewayd_hooks.helpers.formats import AnyText, Either, Format, FormatLeaf, Tag, Tags
from gatewayd_hooks.helpers.grammars import read_choices, shortest

Schema = Callable[[str], dict[str, Any]]
"""Function that converts a JSON Schema, all of which XGrammar supports."""


def write(found: Format, schema_of: Schema) -> dict[str, Any]:
    """Convert a format.

    Raises:
        GrammarRefused: XGrammar does not support a part of it.
    """
    match found:
        case FormatLeaf(spec):
            return _form(spec, schema_of)
        case AnyText():
            return {"type": "any_text"}
        case formats.InOrder(elements):
            return {"type": "sequence", "elements": [write(one, schema_of) for one in elements]}
        case Either(elements):
            return {"type": "or", "elements": [write(one, schema_of) for one in elements]}
        case Tag(begin, content, end):
            return {"type": "tag", "begin": begin, "content": write(content, schema_of), "end": end}
        case Tags(tags, frame):
            fields: dict[str, Any] = {
                "tags": [write(tag, schema_of) for tag in tags],
                "at_least_one": frame.at_least_one,
                "stop_after_first": frame.stop_after_first,
            }
            if frame.separator is not None:
                return {"type": "tags_with_separator", "separator": frame.separator, **fields}
            # XGrammar requires one trigger for each structure: the shorter matches first anyway.
            return {"type": "triggered_tags", "triggers": shortest(frame.triggers), **fields}


def marked_texts(found: Format) -> list[str]:
    """Return the delimiters, in which special tokens may replace their contents."""
    match found:
        case formats.InOrder(elements) | Either(elements):
            return [text for one in elements for text in marked_texts(one)]
        case Tag(begin, content, end):
            return [begin, end, *marked_texts(content)]
        case Tags(tags, _):
            return [text for one in tags for text in marked_texts(one)]
        case _:
            return []


def _form(spec: GuideSpec, schema_of: Schema) -> dict[str, Any]:
    match spec.form:
        case "json_schema":
            return schema_of(spec.text)
        case "regex":
            check_counts(spec.text)
            return {"type": "regex", "pattern": whole(spec.text)}
        case "choice":
            choices = [{"type": "const_string", "value": one} for one in read_choices(spec.text)]
            return choices[0] if len(choices) == 1 else {"type": "or", "elements": choices}
    if "::=" not in spec.text:
        raise GrammarRefused("xgrammar supports no Lark within a format; write the grammar in EBNF")
    check_counts(spec.text)
    return {"type": "grammar", "grammar": spec.text}
