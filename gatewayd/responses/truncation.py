"""A conversation that is too long, without what is oldest in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gatewayd.http.schema.messages import MAX_MESSAGES

Item = dict[str, Any]


def starts(items: Sequence[Item]) -> list[int]:
    """Where a conversation may begin instead, from its own beginning to the shortest.

    At turns of the user, so that templates see the roles in their order and no output is without
    its call; in the last turn, behind outputs of functions.

    Args:
        items: the conversation.
    """
    last = _last_question(items)
    found = [0]
    for at in range(1, len(items)):
        is_turn = _role(items[at]) == "user"
        is_step = at > last and _is_output(items[at - 1]) and not _is_output(items[at])
        if is_turn or is_step:
            found.append(at)
    return [at for at in found if len(items) - at < MAX_MESSAGES] or found[-1:]


def begun_at(items: Sequence[Item], start: int) -> list[Item]:
    """What is left of a conversation: what it was told to be, and the last question, stay.

    Args:
        items: the conversation.
        start: one of ``starts``.
    """
    last = _last_question(items)
    return [
        item
        for at, item in enumerate(items)
        if at >= start or at == last or _role(item) in ("system", "developer")
    ]


def _last_question(items: Sequence[Item]) -> int:
    return max((at for at, item in enumerate(items) if _role(item) == "user"), default=-1)


def _role(item: Item) -> str | None:
    role: str | None = item.get("role")
    return role


def _is_output(item: Item) -> bool:
    return bool(item["type"] == "function_call_output")
