"""Turns of a conversation: ``s += user("...")``, or ``with s.user(): ...``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gatewayd_lang.pieces import Expression, Piece

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True)
class Turn(Expression):
    """Message of one role."""

    role: Role
    content: Piece


def system(content: Piece) -> Turn:
    """Return a system message."""
    return Turn("system", content)


def user(content: Piece) -> Turn:
    """Return a user message."""
    return Turn("user", content)


def assistant(content: Piece) -> Turn:
    """Return an assistant message, such as ``assistant(gen("answer"))``."""
    return Turn("assistant", content)
