"""Write ``texts.jsonl``: ``python3.11 -m tests.engine.offline.quantize.make_texts``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain, zip_longest
from random import Random

from tokenizers import Tokenizer

from gatewayd_engine.model import embedded
from gatewayd_engine.offline.quality.texts import QualityText
from gatewayd_engine.offline.quality.texts import bundled as measured
from gatewayd_engine.offline.quantize.texts import BUNDLED
from gatewayd_engine.offline.train.answers import held_out
from gatewayd_engine.offline.train.chats import TOOLS_SYSTEM, chats
from gatewayd_engine.offline.train.stdlib_symbols import library_root, source_files, symbols
from tests.engine.offline.quality.make_texts import LICENCE

WINDOW = 32
_TOKENS, _LONGEST, _EACH = 20_000, 512, 23
"""Tokens of each kind; tokens of the longest piece; one symbol in this many is used."""


class Overlaps:
    """Index of token runs, to find texts that overlap with others outside the tools prompt."""

    def __init__(self, texts: Sequence[QualityText], tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._windows = {window for text in texts for window in self._windows_of(text.text)}

    def has(self, text: str) -> bool:
        """Whether a text shares a run of ``WINDOW`` tokens with the indexed ones."""
        return not self._windows.isdisjoint(self._windows_of(text))

    def _windows_of(self, text: str) -> set[tuple[int, ...]]:
        ids = self._tokenizer.encode(text.replace(TOOLS_SYSTEM, "")).ids
        return {tuple(ids[at : at + WINDOW]) for at in range(len(ids) - WINDOW + 1)}


def make() -> list[QualityText]:
    """Compose chats and pieces of source files that do not overlap with the quality texts."""
    tokenizer = Tokenizer.from_file(str(embedded.folder() / "tokenizer.json"))
    files = source_files(library_root())
    found = symbols(files)
    others = sorted(set(found) - set(held_out(found)), key=lambda symbol: symbol.qualified)
    written = chats(others[::_EACH], Random(11), num_greetings=0)
    code = [file.text for file in files]
    overlaps, random = Overlaps(measured(), tokenizer), Random(13)
    for texts in (written, code):
        random.shuffle(texts)

    def some(kind: str, texts: Sequence[str]) -> list[QualityText]:
        taken, count = [], 0
        for text in texts:
            ids = tokenizer.encode(text).ids
            begin = random.randrange(max(1, len(ids) - _LONGEST)) if kind == "code" else 0
            piece = ids[begin : begin + _LONGEST]
            cut = tokenizer.decode(piece, skip_special_tokens=False)
            if len(piece) < WINDOW or overlaps.has(cut):
                continue
            taken.append(QualityText(kind, cut))
            count += len(piece)
            if count > _TOKENS:
                break
        return taken

    # Alternating, so that any prefix of the list has both kinds.
    pairs = zip_longest(some("chats", written), some("code", code))
    return [text for text in chain.from_iterable(pairs) if text is not None]


def main() -> None:
    """Write the bundled file of texts."""
    lines = [{"licence": LICENCE}, *(text._asdict() for text in make())]
    BUNDLED.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")


if __name__ == "__main__":
    main()
