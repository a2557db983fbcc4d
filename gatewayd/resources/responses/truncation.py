"""Truncation of conversations that exceed the context, dropping the oldest items."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from gatewayd.errors import ContextLengthExceeded
from gatewayd_hooks.requests.fields import MAX_MESSAGES

Item = dict[str, Any]
Made = TypeVar("Made")


class TruncatedConversation(NamedTuple, Generic[Made]):
    """Result for a truncated conversation, and the index of its first item."""

    made: Made
    start: int


async def most_that_fits(
    conversation: Sequence[Item], attempt: Callable[[list[Item]], Awaitable[Made]]
) -> TruncatedConversation[Made]:
    """Process the whole conversation, or the longest part of it that fits the context.

    Args:
        conversation: all items.
        attempt: processes items, or refuses them because of their length.

    Raises:
        ContextLengthExceeded: even the shortest part is too long.
        GatewayError: as ``attempt`` does.
    """
    # Whole first: most conversations fit, at the cost of one attempt.
    first, *shorter = possible_starts(conversation)
    try:
        return TruncatedConversation(await attempt(truncated(conversation, first)), first)
    except ContextLengthExceeded:
        if not shorter:
            raise
    # The shortest next: if even that is too long, its error is the answer.
    found = await attempt(truncated(conversation, shorter[-1]))
    # Binary search; `shorter[high]` fits and is `found`, everything before `low` is too long.
    low, high = 0, len(shorter) - 1
    while low < high:
        middle = (low + high) // 2
        try:
            found = await attempt(truncated(conversation, shorter[middle]))
            high = middle
        except ContextLengthExceeded:
            low = middle + 1
    return TruncatedConversation(found, shorter[low])


def possible_starts(items: Sequence[Item]) -> list[int]:
    """Possible first items of a truncated conversation, from the longest to the shortest.

    At turns of the user, so that templates see roles in their order and no output is without its
    call; in the last turn, after outputs of functions.

    Args:
        items: the conversation.
    """
    last = _last_question(items)
    found = [0]
    for at in range(1, len(items)):
        is_turn = _role(items[at]) == "user"
        # Within the last turn: between the rounds of tool calls that followed the question.
        is_step = at > last and _is_output(items[at - 1]) and not _is_output(items[at])
        if is_turn or is_step:
            found.append(at)
    return [at for at in found if len(items) - at < MAX_MESSAGES] or found[-1:]


def truncated(items: Sequence[Item], start: int) -> list[Item]:
    """Truncate a conversation; system messages and the last question stay.

    Args:
        items: the conversation.
        start: one of ``possible_starts``.
    """
    return [*pinned(items, start), *items[start:]]


def pinned(items: Sequence[Item], start: int) -> list[Item]:
    """Items before ``start`` that stay: system messages and the last question."""
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
