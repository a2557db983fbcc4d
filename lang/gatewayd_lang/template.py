"""A turn's token ids, from the model's own chat template.

The server renders whole conversations. What a turn begins and ends with is what two renderings
have in common that differ in the turn's content alone; what it adds to the turns before it is what
the rendering has beyond theirs. So the ids of earlier turns stay as they were generated, and with
them what the server has cached, even where their text would be encoded otherwise today.

A template that writes earlier turns differently once another follows (one that leaves old
reasoning out, say) is not incremental: then the conversation is taken as it is rendered anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gatewayd_lang.errors import ServerError, TemplateError
from gatewayd_lang.roles import Role
from gatewayd_lang.server import Server

_PROBES = ("a", "b")


class Message(NamedTuple):
    """A turn that is over, or as much as there is of it."""

    role: Role
    text: str

    @property
    def fields(self) -> dict[str, str]:
        """The message as the API has it."""
        return {"role": self.role, "content": self.text}


class Frame(NamedTuple):
    """What stands around the content of a turn.

    Attributes:
        is_anew: whether ``opening`` replaces all turns before, instead of following them.
        opening: ids before the content.
        closing: ids behind it.
    """

    is_anew: bool
    opening: list[int]
    closing: list[int]


async def frame_of(server: Server, before: Sequence[Message], role: Role) -> Frame:
    """Find what a turn begins and ends with.

    Args:
        server: has the template.
        before: the turns so far.
        role: of the turn.

    Raises:
        ServerError: the template refuses the conversation.
        TemplateError: it does not show what the turn says.
    """
    turns = [message.fields for message in before]
    probes = [[*turns, {"role": role, "content": text}] for text in _PROBES]
    is_answer = role == "assistant" and bool(turns)
    base = await _base(server, turns)
    some = await server.render(probes[0], generation_prompt=False)
    others = await server.render(probes[1], generation_prompt=False)
    prompt = await server.render(turns, generation_prompt=True) if is_answer else []
    start = _common(some, others)
    if start == len(some):
        raise TemplateError(f"the model's chat template does not show what the {role} says")
    end = _common(some[start:][::-1], others[start:][::-1])
    closing = some[len(some) - end :]
    opening = prompt if is_answer else some[:start]
    if base is None or opening[: len(base)] != base:
        return Frame(True, opening, closing)
    return Frame(False, opening[len(base) :], closing)


async def _base(server: Server, turns: list[dict[str, str]]) -> list[int] | None:
    """The turns before alone; None where the template refuses to end with them."""
    if not turns:
        return []
    try:
        return await server.render(turns, generation_prompt=False)
    except ServerError as error:
        if error.status != 400:
            raise
        return None


def _common(some: Sequence[int], others: Sequence[int]) -> int:
    """Leading ids that two lists have in common."""
    for at, (one, other) in enumerate(zip(some, others, strict=False)):
        if one != other:
            return at
    return min(len(some), len(others))
