"""Served workloads: random prompts and streamed answers of fixed lengths."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tokenizers import Tokenizer

from gatewayd.cli.bench.sweep import LoadLevel
from gatewayd.cli.bench.workload import Item

_SPACE = "Ġ"  # a space in the alphabet of byte-level tokenizers
_MIN_WORDS = 100


@dataclass(frozen=True, slots=True)
class Served:
    """Workload at one load level.

    Attributes:
        load: concurrency, or requests per second.
        requests: number of measured requests.
        warmup: number of warm-up requests before them, not measured.
        input_tokens, output_tokens: lengths of each request.
    """

    load: LoadLevel
    requests: int
    warmup: int
    input_tokens: int = 512
    output_tokens: int = 128

    def scaled(self, fraction: float) -> Served:
        """Scale the number of requests, their lengths and the concurrency by a fraction."""
        load = self.load
        if load.kind == "concurrency":
            load = LoadLevel(load.kind, _part(int(load.value), fraction))
        return Served(
            load,
            _part(self.requests, fraction),
            _part(self.warmup, fraction),
            _part(self.input_tokens, fraction),
            _part(self.output_tokens, fraction),
        )


WORKLOADS: Mapping[str, Served] = MappingProxyType(
    {
        "c1": Served(LoadLevel("concurrency", 1), requests=12, warmup=2),
        "c32": Served(LoadLevel("concurrency", 32), requests=256, warmup=32),
        "c256": Served(LoadLevel("concurrency", 256), requests=1024, warmup=256),
        "r10": Served(LoadLevel("rate", 10.0), requests=300, warmup=16),
    }
)
"""Workloads by command line name."""


def _part(whole: int, fraction: float) -> int:
    return max(1, round(whole * fraction))


def words_of(folder: Path) -> list[str]:
    """Return words that, with their leading space, are always exactly one token.

    Prompts are sent as text, so that tokenization is measured too, and still have an exact length
    in tokens.

    Raises:
        ValueError: there is no tokenizer, or it has too few such words.
    """
    file = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # all that the library raises
        raise ValueError(f"{file} cannot be read: {error}") from error
    # Sorted, because a vocabulary has no order: a seed must always select the same words.
    found = sorted(word for word in tokenizer.get_vocab() if re.fullmatch(f"{_SPACE}[a-z]+", word))
    texts = [word.replace(_SPACE, " ") for word in found]
    encoded = tokenizer.encode_batch(texts, add_special_tokens=False)
    words = [text for text, one in zip(texts, encoded, strict=True) if len(one.ids) == 1]
    if len(words) < _MIN_WORDS:
        raise ValueError(f"{file} has {len(words)} words of one token; prompts need {_MIN_WORDS}")
    return words


def prompts(words: Sequence[str], served: Served, seed: int) -> Iterator[Item]:
    """Yield random prompts forever, which share prefixes only by chance."""
    chance = random.Random(f"served {seed}")
    while True:
        text = "".join(chance.choices(words, k=served.input_tokens))
        yield Item(text, served.output_tokens)
