"""What a state has said so far, as token ids, as text and as turns. Used on the loop only."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gatewayd_lang.errors import TemplateError
from gatewayd_lang.roles import Role
from gatewayd_lang.server import Server
from gatewayd_lang.template import Message, frame_of


class _Open(NamedTuple):
    """The turn that is not over."""

    role: Role
    start: int
    """Characters of the text before it."""
    closing: list[int]


@dataclass
class Transcript:
    """Grows at its end.

    Attributes:
        ids: what the model has seen and said. Each segment is encoded by itself.
        text: the same without what the chat template writes.
        turns: that are over.
    """

    ids: list[int] = field(default_factory=list)
    text: str = ""
    turns: list[Message] = field(default_factory=list)
    _open: _Open | None = None
    _first_turn: int = 0
    """Ids before it."""
    _is_mixed: bool = False
    """Whether there is text between turns, which belongs to none of them."""

    def copy(self) -> Transcript:
        """One that goes its own way."""
        return replace(self, ids=self.ids.copy(), turns=self.turns.copy())

    async def say(self, server: Server, text: str) -> None:
        """Append a segment."""
        self.append(text, await server.tokenize(text, special=not self.ids))

    def append(self, text: str, ids: list[int]) -> None:
        """Append what is encoded already."""
        self._is_mixed = self._is_mixed or (self._open is None and bool(self.turns))
        self.ids += ids
        self.text += text

    async def begin(self, server: Server, role: Role) -> None:
        """Open a turn."""
        frame = await frame_of(server, self.turns, role)
        if not self.turns:
            self._first_turn = len(self.ids)
        if frame.is_anew:
            if self._is_mixed:
                raise TemplateError(
                    "the model's chat template writes the turns before this one anew, and there "
                    "is text between them that belongs to none: put it into a turn"
                )
            del self.ids[self._first_turn :]
        self.ids += frame.opening
        self._open = _Open(role, len(self.text), frame.closing)

    async def end(self) -> None:
        """Close it."""
        if self._open is None:
            raise RuntimeError("no turn is open")
        role, start, closing = self._open
        self.ids += closing
        self.turns.append(Message(role, self.text[start:]))
        self._open = None

    @property
    def messages(self) -> list[Message]:
        """All turns, the last as far as it has come."""
        if self._open is None:
            return list(self.turns)
        return [*self.turns, Message(self._open.role, self.text[self._open.start :])]
