"""What a model itself writes: answers to chats and continuations of source files, to learn from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from gatewayd_engine.offline.train.chats import START, chats
from gatewayd_engine.offline.train.stdlib_symbols import SourceFile, Symbol, symbols
from gatewayd_engine.offline.train.tokenizer import END_ID, END_OF_TEXT_ID, PAD_ID
from gatewayd_engine.runner.draft_model import RowModel

LONGEST = 256
"""Tokens of a row, prompt included."""
LONGEST_CHAT, CODE_PROMPT = 128, 128
HELD_OUT = 16
"""One symbol in so many is kept for measuring: nothing about it is trained on."""
WARM_SHARE, WARMTH = 0.5, 0.8
"""How many prompts are answered at which temperature; the others are answered greedily."""
_ENDS = (END_OF_TEXT_ID, END_ID)
_TURN = f"{START}assistant\n"


@dataclass(frozen=True, slots=True)
class Answers:
    """Rows of tokens that a model wrote.

    Attributes:
        ids: padded, shape ``[n, LONGEST]``.
        lengths: tokens of each row, shape ``[n]``.
        begins: its first token that is worth foreseeing, shape ``[n]``.
    """

    ids: NDArray[np.int32]
    lengths: NDArray[np.int64]
    begins: NDArray[np.int64]

    def save(self, path: Path) -> None:
        """Write one ``.npz`` file."""
        np.savez(path, ids=self.ids, lengths=self.lengths, begins=self.begins)

    @classmethod
    def load(cls, path: Path) -> Answers:
        """Read what ``save`` wrote."""
        with np.load(path) as file:
            return cls(file["ids"], file["lengths"], file["begins"])


def held_out(found: Sequence[Symbol]) -> list[Symbol]:
    """Symbols that no row for training is about."""
    return list(found[::HELD_OUT])


def chat_prompts(found: Sequence[Symbol], seed: int, count: int) -> list[str]:
    """Chats about symbols, up to the last answer, which is left to the model."""
    written = chats(found, Random(seed), repetitions=1, num_greetings=count // 50)
    return [chat[: chat.rindex(_TURN) + len(_TURN)] for chat in written[:count]]


def prompts(
    files: Sequence[SourceFile], tokenizer: Tokenizer, seed: int, num_chats: int, num_code: int
) -> list[tuple[list[int], int]]:
    """Beginnings to be continued.

    Args:
        files: the library's source.
        tokenizer: the model's.
        seed: of what is asked, and where files are cut.
        num_chats: about symbols that are not held out.
        num_code: pieces of source files.

    Returns:
        Token ids, and which of them is the first worth foreseeing: a chat's answer, or any
        token of source text. Shuffled.
    """
    random = Random(seed)
    found = symbols(files)
    kept = [symbol for i, symbol in enumerate(found) if i % HELD_OUT]
    asked = tokenizer.encode_batch(chat_prompts(kept, seed, num_chats))
    begun = [(one.ids, len(one.ids)) for one in asked if len(one.ids) <= LONGEST_CHAT]
    chosen = [random.choice(files) for _ in range(num_code)]
    for encoding in tokenizer.encode_batch([file.text for file in chosen]):
        start = random.randrange(max(1, len(encoding.ids) - CODE_PROMPT))
        piece = encoding.ids[start : start + CODE_PROMPT]
        if piece:
            begun.append((piece, 1))
    random.shuffle(begun)
    return begun


def write_answers(
    model: RowModel,
    begun: Sequence[tuple[list[int], int]],
    width: int,
    seed: int,
    progress: Callable[[float, int], None],
) -> Answers:
    """Let a model continue texts, up to its end token or ``LONGEST``.

    Args:
        model: with ``width`` rows.
        begun: see ``prompts``; at least one token each.
        width: how many are written at once.
        seed: of those that are drawn.
        progress: told the fraction done and the tokens written.
    """
    generator = torch.Generator().manual_seed(seed)
    ids = np.full((len(begun), LONGEST), PAD_ID, np.int32)
    lengths = np.array([len(prompt) for prompt, _ in begun], np.int64)
    for i, (prompt, _) in enumerate(begun):
        ids[i, : len(prompt)] = prompt
    computed = np.zeros(len(begun), np.int64)
    warm = np.arange(len(begun)) % round(1 / WARM_SHARE) == 0
    places = np.arange(min(width, len(begun)))  # which text each row of the model writes
    rows = np.arange(len(places))
    following, written = len(places), 0
    while len(places):
        starts = computed[places]
        counts = lengths[places] - starts
        at = np.minimum(starts[:, None] + np.arange(int(counts.max())), ids.shape[1] - 1)
        new = np.take_along_axis(ids[places], at, 1)
        logits = model.extend(rows, starts, counts, new)
        computed[places] = lengths[places]
        tokens = _choose(logits, warm[places], generator)
        ids[places, lengths[places]] = tokens
        lengths[places] += 1
        written += len(places)
        ended = np.isin(tokens, _ENDS) | (lengths[places] == LONGEST)
        fresh = np.arange(following, min(following + int(ended.sum()), len(begun)))
        following += len(fresh)
        free = np.flatnonzero(ended)
        places[free[: len(fresh)]] = fresh
        stays = np.ones(len(places), bool)
        stays[free[len(fresh) :]] = False
        places, rows = places[stays], rows[stays]
        progress((following - len(places)) / len(begun), written)
    return Answers(ids, lengths, np.array([begin for _, begin in begun], np.int64))


def _choose(
    logits: torch.Tensor, warm: NDArray[np.bool_], generator: torch.Generator
) -> NDArray[np.int64]:
    chosen = logits.argmax(-1)
    drawn = torch.multinomial(torch.softmax(logits / WARMTH, -1), 1, generator=generator)
    tokens: NDArray[np.int64] = np.where(warm, drawn.squeeze(-1).numpy(), chosen.numpy())
    return tokens
