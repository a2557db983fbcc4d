"""Where the client wrote what the gateway refuses of the body that was made of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from gatewayd_hooks.protocols import Refusal
from gatewayd_proto_ollama.requests import RENAMED, Asked

_MESSAGE = re.compile(r"messages\[(\d+)\](?:\..*)?", re.DOTALL)
_FORM = re.compile(r"response_format(?:\.json_schema)?(?:\.schema)?(.*)", re.DOTALL)


@contextmanager
def told(asked: Asked) -> Iterator[None]:
    """Refusals from within have the client's places.

    Raises:
        Refusal: there was one.
    """
    try:
        yield
    except Refusal as refusal:
        if refusal.param is None or (place := _place(asked, refusal.param)) == refusal.param:
            raise
        raise refusal.at(place) from refusal


def _place(asked: Asked, param: str) -> str:
    if asked.turns:
        if found := _MESSAGE.fullmatch(param):
            return asked.turns[int(found[1])]
        if param == "messages":
            return asked.turns[-1]
    if found := _FORM.fullmatch(param):
        return f"format{found[1]}"
    if param.startswith("messages[") and param.endswith(".reasoning_content"):
        return param.removesuffix("reasoning_content") + "thinking"
    for theirs, ours in RENAMED.items():
        if param == theirs or param.startswith((f"{theirs}.", f"{theirs}[")):
            return ours + param[len(theirs) :]
    return param
