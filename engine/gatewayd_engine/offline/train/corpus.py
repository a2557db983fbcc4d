"""Training corpus: source files, and chats made from them, stored as two JSON-lines files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from gatewayd_engine.offline.train.chats import chats
from gatewayd_engine.offline.train.stdlib_symbols import SourceFile, symbols


@dataclass(frozen=True, slots=True)
class Corpus:
    """Texts to train on: whole source files and whole chats."""

    code: Sequence[str]
    chats: Sequence[str]

    def save(self, folder: Path) -> None:
        """Write ``code.jsonl`` and ``chats.jsonl``, with a JSON string per line."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, texts in (("code", self.code), ("chats", self.chats)):
            lines = "".join(json.dumps(text) + "\n" for text in texts)
            (folder / f"{name}.jsonl").write_text(lines, "utf-8")

    @classmethod
    def load(cls, folder: Path) -> Corpus:
        """Read the files written by ``save``."""
        return cls(_read(folder / "code.jsonl"), _read(folder / "chats.jsonl"))


def _read(path: Path) -> list[str]:
    # Not str.splitlines: texts may contain other line-ending characters.
    with path.open(encoding="utf-8", newline="\n") as lines:
        return [json.loads(line) for line in lines]


def build(files: Sequence[SourceFile], seed: int, num_greetings: int = 1500) -> Corpus:
    """Make a corpus from source files; deterministic for the same files and seed."""
    code = [f"# {file.path.as_posix()}\n{file.text}" for file in files]
    return Corpus(code, chats(symbols(files), Random(seed), num_greetings=num_greetings))
