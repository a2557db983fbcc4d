"""A conversation that is too long, without what is oldest in it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from gatewayd.errors import ContextLengthExceeded
from gatewayd_hooks.requests.fields import MAX_MESSAGES

Item = dict[str, Any]
Made = TypeVar("Made")


class TruncatedConversation(NamedTuple, Generic[Made]):
    """What was made, and of the conversation from where on."""

    made: Made
    start: int


async def most_that_fits(
    conversation: Sequence[Item], attempt: Callable[[list[Item]], Awaitable[Made]]
) -> TruncatedConversation[Made]:
    """What is made of the whole conversation, or of the most of it that fits the context.

    Args:
        conversation: all items.
        attempt: makes something of them, or refuses them because of their length.

    Raises:
        ContextLengthExceeded: even the shortest beginning is too long.
        GatewayError: as ``attempt`` does.
    """
    first, *shorter = starts(conversation)
    try:
        return TruncatedConversation(await attempt(begun_at(conversation, first)), first)
    except ContextLengthExceeded:
        if not shorter:
            raise
    found = await attempt(begun_at(conversation, shorter[-1]))
    low, high = 0, len(shorter) - 1
    while low < high:
        middle = (low + high) // 2
        try:
            found = await attempt(begun_at(conversation, shorter[middle]))
            high = middle
        except ContextLengthExceeded:
            low = middle + 1
    return TruncatedConversation(found, shorter[low])


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
    return [*pinned(items, start), *items[start:]]


def pinned(items: Sequence[Item], start: int) -> list[Item]:
    """Of what is before: what it was told to be, and the last question."""
    last = _last_question(items)
    return [
        item
        for at, item in enumerate(items[:start])
        if at == last or _role(item) in ("system", "developer")
    ]


def _last_question(items: Sequence[Item]) -> int:
    return max((at for at, item in enumerate(items) if _role(item) == "user"), default=-1)


def _role(item: Item) -> str | None:
    role: str | None = item.get("role")
    return role


def _is_output(item: Item) -> bool:
    return bool(item["type"] == "function_call_output")
