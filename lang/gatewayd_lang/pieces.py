"""Appendable pieces: texts, expressions, and sums of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


class Expression:
    """Appendable piece, alone or as a part of a sum: ``"Q: " + question + gen("answer")``."""

    def __add__(self, other: Piece) -> Sum:
        return Sum((*parts_of(self), *parts_of(other)))

    def __radd__(self, other: str) -> Sum:
        return Sum((other, *parts_of(self)))


@dataclass(frozen=True)
class Sum(Expression):
    """Concatenation of pieces."""

    parts: tuple[Piece, ...]


Piece: TypeAlias = str | Expression


def parts_of(piece: Piece) -> tuple[Piece, ...]:
    """Return the parts of a piece."""
    return piece.parts if isinstance(piece, Sum) else (piece,)
