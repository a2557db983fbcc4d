"""Packing of the corpus into rows of token ids of one length.

Chats are never split: rows are packed with whole ones and padded. Source files are split every
``length`` tokens, several times with different offsets. Attention is not masked between chats.
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
    """Tokenize a corpus and pack it into rows.

    Args:
        corpus: the texts.
        tokenizer: with at most 65,536 entries.
        length: predicted tokens per row, which has one token more.
        seed: for the offsets.

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
            # Later repetitions split files elsewhere, so that tokens are seen with other contexts.
            offset = random.randrange(length) if repetition else 0
            if offset:
                yield text[: offset + 1]
            for start in range(offset, len(text) - SHORTEST, length):
                # The last target of a row is the first input of the next.
                yield text[start : start + length + 1]


def _filled(row: list[int], size: int) -> list[int]:
    return row + [PAD_ID] * (size - len(row))
