"""Content of a state as token ids, as text and as turns. Used on the loop only."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gatewayd_lang.errors import TemplateError
from gatewayd_lang.roles import Role
from gatewayd_lang.server import Server
from gatewayd_lang.template import Message, frame_of


class _Open(NamedTuple):
    """Turn that is not closed."""

    role: Role
    start: int
    """Number of characters before it."""
    closing: list[int]


@dataclass
class Transcript:
    """Append-only content.

    Attributes:
        ids: prompt and generated tokens. Each segment is encoded separately.
        text: the same without the markup of the chat template.
        turns: closed turns.
    """

    ids: list[int] = field(default_factory=list)
    text: str = ""
    turns: list[Message] = field(default_factory=list)
    _open: _Open | None = None
    _first_turn: int = 0
    """Number of ids before the first turn."""
    _is_mixed: bool = False
    """Whether there is text between turns, which belongs to none of them."""

    def copy(self) -> Transcript:
        """Return an independent copy."""
        return replace(self, ids=self.ids.copy(), turns=self.turns.copy())

    async def append_text(self, server: Server, text: str) -> None:
        """Encode and append a segment."""
        # BOS and the like only at the very beginning.
        self.append(text, await server.tokenize(text, special=not self.ids))

    def append(self, text: str, ids: list[int]) -> None:
        """Append encoded text."""
        self._is_mixed = self._is_mixed or (self._open is None and bool(self.turns))
        self.ids += ids
        self.text += text

    async def open_turn(self, server: Server, role: Role) -> None:
        """Open a turn."""
        frame = await frame_of(server, self.turns, role)
        if not self.turns:
            self._first_turn = len(self.ids)
        if frame.replaces_turns:
            if self._is_mixed:
                raise TemplateError(
                    "the model's chat template renders the turns before this one differently, and "
                    "there is text between them that belongs to none: put it into a turn"
                )
            # Text before the first turn stays, which no template renders.
            del self.ids[self._first_turn :]
        self.ids += frame.opening
        self._open = _Open(role, len(self.text), frame.closing)

    async def close_turn(self) -> None:
        """Close the open turn."""
        if self._open is None:
            raise RuntimeError("no turn is open")
        role, start, closing = self._open
        self.ids += closing
        self.turns.append(Message(role, self.text[start:]))
        self._open = None

    @property
    def messages(self) -> list[Message]:
        """All turns, including an unfinished one."""
        if self._open is None:
            return list(self.turns)
        return [*self.turns, Message(self._open.role, self.text[self._open.start :])]
