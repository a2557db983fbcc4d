"""The tokens that models are measured, or calibrated, on: of bundled texts, or of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from tokenizers import Tokenizer

from gatewayd_engine.offline.quality.job import Sample
from gatewayd_engine.offline.quality.texts import QualityText, bundled, read

LONGEST = 1024
"""Tokens of a piece: a longer text is cut into several."""
_SHORTEST, _LEAST_PACKED = 2, 16
_MOST_CHARACTERS = 64
"""Of a token, on the average: beyond, a text is not looked at. Files may be of many gigabytes."""


def samples(
    folder: Path,
    file: Path | None,
    num_tokens: int,
    context: int,
    default: Callable[[], Sequence[QualityText]] = bundled,
    *,
    packed: bool = False,
) -> list[Sample]:
    """Pieces of texts, as many tokens of each kind.

    Args:
        folder: of the model whose tokenizer is taken.
        file: the texts; None takes those that are bundled, by ``default``.
        num_tokens: of all of them, at most.
        context: tokens of the shortest context.
        default: the bundled texts.
        packed: texts of a kind follow one another, so that pieces are long, all as long as can be;
            the first three quarters of each are a prompt.

    Raises:
        ValueError: there is no text of two tokens, or of 16 where they are packed, or a file cannot
            be read; one sentence.
    """
    source = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(source))
    except Exception as error:  # tokenizers raises bare Exception
        raise ValueError(f"cannot read {source}: {error}") from error
    try:
        texts = default() if file is None else read(file)
    except (OSError, ValueError) as error:
        raise ValueError(f"--text: cannot read {file}: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    kinds = list(dict.fromkeys(text.kind for text in texts))
    each, longest = num_tokens // max(1, len(kinds)), min(LONGEST, context)
    found = []
    for kind in kinds:
        most = each * _MOST_CHARACTERS
        of_kind = [QualityText(kind, text.text[:most]) for text in texts if text.kind == kind]
        if packed:
            one = QualityText(kind, "".join(text.text for text in of_kind))
            pieces = _long(tokenizer, one, each, min(longest, each))
            found += [Sample(kind, ids, len(ids) * 3 // 4) for ids in pieces]
        else:
            begun = _first(_pieces(tokenizer, of_kind, longest), each)
            found += [Sample(kind, ids) for ids in begun]
    if not found:
        least = _LEAST_PACKED if packed else _SHORTEST
        raise ValueError(f"there is no text of {least} tokens; raise --tokens, or lengthen it")
    return found


def _long(tokenizer: Tokenizer, text: QualityText, num_tokens: int, length: int) -> list[list[int]]:
    """Pieces of a length, as many as have so many tokens; what there is where the text is short."""
    if length < _LEAST_PACKED:
        return []
    pieces = [*islice(_pieces(tokenizer, [text], length), num_tokens // length)]
    found = [piece for piece in pieces if len(piece) == length]
    return found or [piece for piece in pieces if len(piece) >= _LEAST_PACKED]


def _pieces(
    tokenizer: Tokenizer, texts: Sequence[QualityText], longest: int
) -> Iterator[list[int]]:
    """Each begins as a prompt does, if the tokenizer begins prompts with something."""
    begin = tokenizer.encode("").ids[:1]
    step = longest - len(begin)
    for text in texts:
        ids = tokenizer.encode(text.text, add_special_tokens=False).ids
        for start in range(0, len(ids), step):
            yield begin + ids[start : start + step]


def _first(pieces: Iterator[list[int]], num_tokens: int) -> Iterator[list[int]]:
    left = num_tokens
    for piece in pieces:
        cut = piece[:left]
        if len(cut) >= _SHORTEST:
            yield cut
        left -= len(cut)
        if left < _SHORTEST:
            return
