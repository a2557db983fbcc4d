"""The texts that quality is measured on, bundled or of a file. Imports no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

BUNDLED = Path(__file__).with_name("texts.jsonl")


class QualityText(NamedTuple):
    """One text, and which figure it counts for.

    Attributes:
        kind: texts of a kind are reported together.
        text: special tokens are spelled out.
    """

    kind: str
    text: str


def bundled() -> list[QualityText]:
    """Chats and source text of the corpus of the embedded models; see ``make_texts``."""
    return read(BUNDLED)


def read(path: Path) -> list[QualityText]:
    """The texts of a file: one, or one a line, ``{"kind": ..., "text": ...}``, of a ``.jsonl``.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not UTF-8, or a line is not of that form; it names the line.
    """
    if path.suffix != ".jsonl":
        return [QualityText("text", path.read_text("utf-8"))]
    found = []
    with path.open(encoding="utf-8", newline="\n") as lines:
        for number, line in enumerate(lines, 1):
            try:
                values = json.loads(line)
            except ValueError as error:
                raise ValueError(f"line {number} is not JSON: {error}") from error
            if not isinstance(values, dict):
                raise ValueError(f'line {number} is not an object with "text"')
            if "licence" in values and "text" not in values:
                continue
            kind, text = values.get("kind", "text"), values.get("text")
            if not isinstance(kind, str) or not isinstance(text, str):
                raise ValueError(f'line {number}: "text", and "kind" if it is there, are strings')
            found.append(QualityText(kind, text))
    return found
