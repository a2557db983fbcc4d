"""Maps fields of the gateway's body back to the client's request, for refusals."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from gatewayd_hooks.protocols import RequestRefusal
from gatewayd_proto_ollama.requests import RENAMED, OllamaRequest

_MESSAGE = re.compile(r"messages\[(\d+)\](?:\..*)?", re.DOTALL)
_FORM = re.compile(r"response_format(?:\.json_schema)?(?:\.schema)?(.*)", re.DOTALL)


@contextmanager
def translated(field_of: Callable[[str], str]) -> Iterator[None]:
    """Translate the fields of refusals raised in the context.

    Raises:
        Refusal: there was one.
    """
    try:
        yield
    except RequestRefusal as refusal:
        if refusal.param is None or (place := field_of(refusal.param)) == refusal.param:
            raise
        raise refusal.at(place) from refusal


def error_fields(request: OllamaRequest) -> Callable[[str], str]:
    """Return the field translation of a generation request."""
    by_name = renamed(RENAMED)

    def field_of(param: str) -> str:
        if request.turns:
            if found := _MESSAGE.fullmatch(param):
                return request.turns[int(found[1])]
            if param == "messages":
                return request.turns[-1]
        if found := _FORM.fullmatch(param):
            return f"format{found[1]}"
        if param.startswith("messages[") and param.endswith(".reasoning_content"):
            return param.removesuffix("reasoning_content") + "thinking"
        return by_name(param)

    return field_of


def renamed(names: Mapping[str, str]) -> Callable[[str], str]:
    """Return the field translation by a table of names, including nested fields."""

    def field_of(param: str) -> str:
        for theirs, ours in names.items():
            if param == theirs or param.startswith((f"{theirs}.", f"{theirs}[")):
                return ours + param[len(theirs) :]
        return param

    return field_of
