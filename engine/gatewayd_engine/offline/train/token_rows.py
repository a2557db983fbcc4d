"""Rows of token ids, all of one length, cut from the corpus.

A chat is never cut: rows of chats hold whole ones, filled up with padding. Source files are cut
every ``length`` tokens, and again at other offsets. No attention barrier stands between chats.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from gatewayd_engine.offline.train.corpus import Corpus
from gatewayd_engine.offline.train.tokenizer import END_OF_TEXT_ID, PAD_ID

SHORTEST = 8
CODE_REPETITIONS = 3


def pack(corpus: Corpus, tokenizer: Tokenizer, length: int, seed: int) -> NDArray[np.uint16]:
    """Tokenize and cut.

    Args:
        corpus: what to learn.
        tokenizer: of at most 65,536 entries.
        length: tokens that a row predicts; it holds one more.
        seed: of the offsets.

    Returns:
        Shape ``[num_rows, length + 1]``.
    """
    chats = [encoding.ids for encoding in tokenizer.encode_batch(list(corpus.chats))]
    code = [
        [END_OF_TEXT_ID, *encoding.ids, END_OF_TEXT_ID]
        for encoding in tokenizer.encode_batch(list(corpus.code))
    ]
    rows = [*_whole(chats, length + 1), *_pieces(code, length, Random(seed))]
    return np.array([_filled(row, length + 1) for row in rows], dtype=np.uint16)


def _whole(texts: Sequence[list[int]], size: int) -> Iterator[list[int]]:
    row: list[int] = []
    for text in texts:
        if len(text) > size:
            continue
        if len(row) + len(text) > size:
            yield row
            row = []
        row = row + text
    if row:
        yield row


def _pieces(texts: Sequence[list[int]], length: int, random: Random) -> Iterator[list[int]]:
    for repetition in range(CODE_REPETITIONS):
        for text in texts:
            offset = random.randrange(length) if repetition else 0
            if offset:
                yield text[: offset + 1]
            for start in range(offset, len(text) - SHORTEST, length):
                yield text[start : start + length + 1]


def _filled(row: list[int], size: int) -> list[int]:
    return row + [PAD_ID] * (size - len(row))
