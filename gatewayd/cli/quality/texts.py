"""Token samples for evaluation and calibration, from bundled texts or a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from tokenizers import Tokenizer

from gatewayd_engine.offline.quality.job import Sample
from gatewayd_engine.offline.quality.texts import QualityText, bundled, read

LONGEST = 1024
"""Maximum tokens of a sample; longer texts are split."""
_SHORTEST, _LEAST_PACKED = 2, 16
_MOST_CHARACTERS = 64
"""Average characters per token beyond which texts are truncated: files may have gigabytes."""


def samples(
    folder: Path,
    file: Path | None,
    num_tokens: int,
    context: int,
    default: Callable[[], Sequence[QualityText]] = bundled,
    *,
    packed: bool = False,
) -> list[Sample]:
    """Tokenize texts and split them into samples, with the same number of tokens of each kind.

    Args:
        folder: of the model, for its tokenizer.
        file: file of texts; None for the bundled ones.
        num_tokens: maximum tokens of all samples.
        context: context length that samples must fit.
        default: returns the bundled texts.
        packed: whether to concatenate the texts of a kind into samples of the maximum length, of
            which the first three quarters are the prompt.

    Raises:
        ValueError: no text has two tokens (16 if packed), or a file cannot be read; the message is
            a sentence.
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
    # Tokenizer files may enable either, which would change the samples.
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
    """Split a text into samples of exactly ``length``; shorter ones only if there are no others."""
    if length < _LEAST_PACKED:
        return []
    pieces = [*islice(_pieces(tokenizer, [text], length), num_tokens // length)]
    found = [piece for piece in pieces if len(piece) == length]
    return found or [piece for piece in pieces if len(piece) >= _LEAST_PACKED]


def _pieces(
    tokenizer: Tokenizer, texts: Sequence[QualityText], longest: int
) -> Iterator[list[int]]:
    """Split texts into samples, each starting with the tokenizer's BOS token if it has one."""
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
