"""Texts to measure quality on, bundled or from a file. Imports no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

BUNDLED = Path(__file__).with_name("texts.jsonl")


class QualityText(NamedTuple):
    """A text and its kind.

    Attributes:
        kind: group in which the text is reported.
        text: the text, with special tokens spelled out.
    """

    kind: str
    text: str


def bundled() -> list[QualityText]:
    """Read the bundled texts: chats and source code of the embedded models' corpus."""
    return read(BUNDLED)


def read(path: Path) -> list[QualityText]:
    """Read the texts of a file.

    A ``.jsonl`` file has one text per line, ``{"kind": ..., "text": ...}``; others are one text.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not UTF-8, or a line is invalid; the message names the line.
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
            # The header line of bundled files.
            if "licence" in values and "text" not in values:
                continue
            kind, text = values.get("kind", "text"), values.get("text")
            if not isinstance(kind, str) or not isinstance(text, str):
                raise ValueError(f'line {number}: "text", and "kind" if it is there, are strings')
            found.append(QualityText(kind, text))
    return found
