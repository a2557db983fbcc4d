"""Token ids of a turn, from the model's own chat template.

The server renders whole conversations. The opening and closing of a turn are the common prefix and
suffix of two renderings that differ only in the turn's content; what it adds to the turns before is
what the rendering has beyond theirs. So the ids of earlier turns stay as they were generated, and
with them the server's cache, even if their text would be encoded differently now.

A template that renders earlier turns differently once another follows (one that omits old
reasoning, for example) is not incremental: then the new rendering replaces the conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gatewayd_lang.errors import ServerError, TemplateError
from gatewayd_lang.roles import Role
from gatewayd_lang.server import Server

_PROBES = ("a", "b")


class Message(NamedTuple):
    """Completed turn, or as much as there is of it."""

    role: Role
    text: str

    @property
    def fields(self) -> dict[str, str]:
        """Message in the format of the API."""
        return {"role": self.role, "content": self.text}


class Frame(NamedTuple):
    """Markup around the content of a turn.

    Attributes:
        replaces_turns: whether ``opening`` replaces all turns before, instead of following them.
        opening: ids before the content.
        closing: ids after it.
    """

    replaces_turns: bool
    opening: list[int]
    closing: list[int]


async def frame_of(server: Server, before: Sequence[Message], role: Role) -> Frame:
    """Determine the markup of a turn.

    Args:
        server: has the template.
        before: the turns so far.
        role: of the turn.

    Raises:
        ServerError: the template rejects the conversation.
        TemplateError: it does not include the turn's content.
    """
    turns = [message.fields for message in before]
    probes = [[*turns, {"role": role, "content": text}] for text in _PROBES]
    is_answer = role == "assistant" and bool(turns)
    # What the template makes of the turns before, without this one.
    base = await _base(server, turns)
    some = await server.render(probes[0], generation_prompt=False)
    others = await server.render(probes[1], generation_prompt=False)
    prompt = await server.render(turns, generation_prompt=True) if is_answer else []
    # The two probes differ in their content alone.
    start = _common(some, others)
    if start == len(some):
        raise TemplateError(f"the model's chat template omits the content of the {role} turn")
    # Only of what follows the common prefix, so that the two never overlap.
    end = _common(some[start:][::-1], others[start:][::-1])
    closing = some[len(some) - end :]
    # The model generates after the generation prompt, which a rendered answer may not have.
    opening = prompt if is_answer else some[:start]
    # The template changes earlier turns, so that nothing can be appended to them.
    if base is None or opening[: len(base)] != base:
        return Frame(True, opening, closing)
    return Frame(False, opening[len(base) :], closing)


async def _base(server: Server, turns: list[dict[str, str]]) -> list[int] | None:
    """Render the turns before alone; None if the template rejects that."""
    if not turns:
        return []
    try:
        return await server.render(turns, generation_prompt=False)
    except ServerError as error:
        # 400 is a refusal by the template; other errors are the server's.
        if error.status != 400:
            raise
        return None


def _common(some: Sequence[int], others: Sequence[int]) -> int:
    """Return the number of leading ids that two lists have in common."""
    for at, (one, other) in enumerate(zip(some, others, strict=False)):
        if one != other:
            return at
    return min(len(some), len(others))
