"""Turns of a conversation: ``s += user("...")``, or ``with s.user(): ...``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gatewayd_lang.pieces import Expression, Piece

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True)
class Turn(Expression):
    """What one of them says."""

    role: Role
    content: Piece


def system(content: Piece) -> Turn:
    """A turn of the system."""
    return Turn("system", content)


def user(content: Piece) -> Turn:
    """A turn of the user."""
    return Turn("user", content)


def assistant(content: Piece) -> Turn:
    """A turn of the model, such as ``assistant(gen("answer"))``."""
    return Turn("assistant", content)
