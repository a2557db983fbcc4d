"""Write ``texts.jsonl``: ``python3.11 -m tests.engine.offline.quality.make_texts``."""

from __future__ import annotations

import json
from random import Random

from tokenizers import Tokenizer

from gatewayd_engine.model import embedded
from gatewayd_engine.offline.quality.texts import BUNDLED, QualityText
from gatewayd_engine.offline.train.answers import held_out
from gatewayd_engine.offline.train.chats import chats
from gatewayd_engine.offline.train.stdlib_symbols import library_root, source_files, symbols
from gatewayd_engine.offline.train.tokenizer import END_OF_TEXT

LICENCE = (
    "Made from the source files and docstrings of CPython 3.11's standard library, Copyright (c)"
    " 2001 Python Software Foundation; All Rights Reserved, used under the PSF License Agreement"
    " (https://docs.python.org/3/license.html)."
)
_CHAT_TOKENS, _LONGEST_CHAT = 14_000, 512
_PIECES, _LONGEST_PIECE = 14, 1000


def make() -> list[QualityText]:
    """Compose chats about symbols that no head was trained on, and beginnings of source files.

    The embedded models were trained on all of it: they know only this corpus, so their
    probabilities are meaningless on any other text.
    """
    tokenizer = Tokenizer.from_file(str(embedded.folder() / "tokenizer.json"))
    files = source_files(library_root())

    def cut(text: str, most: int) -> tuple[str, int]:
        ids = tokenizer.encode(text).ids[:most]
        return tokenizer.decode(ids, skip_special_tokens=False), len(ids)

    written = chats(held_out(symbols(files)), Random(7), num_greetings=0)
    Random(3).shuffle(written)
    found, count = [], 0
    for chat in written:
        text, length = cut(chat, _LONGEST_CHAT)
        found.append(QualityText("chats", text))
        count += length
        if count > _CHAT_TOKENS:
            break
    code = [f"# {file.path.as_posix()}\n{file.text}" for file in files]
    Random(5).shuffle(code)
    pieces = [cut(text, _LONGEST_PIECE)[0] for text in code[:_PIECES]]
    return [*found, *(QualityText("code", END_OF_TEXT + piece) for piece in pieces)]


def main() -> None:
    """Write the bundled file of texts."""
    lines = [{"licence": LICENCE}, *(text._asdict() for text in make())]
    BUNDLED.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")


if __name__ == "__main__":
    main()
