"""The served workloads: random prompts of one length, answers of another, streamed."""

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
    """One level of load.

    Attributes:
        load: requests in flight, or per second.
        requests: to measure.
        warmup: before them, not measured.
        input_tokens, output_tokens: of each.
    """

    load: LoadLevel
    requests: int
    warmup: int
    input_tokens: int = 512
    output_tokens: int = 128

    def scaled(self, fraction: float) -> Served:
        """That part of the requests, of their lengths, and of those in flight."""
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
"""By the name that is typed."""


def _part(whole: int, fraction: float) -> int:
    return max(1, round(whole * fraction))


def words_of(folder: Path) -> list[str]:
    """Words of which each is one token wherever it stands, with the space before it.

    Prompts are sent as text, so that tokenizing them is measured too, and are still exactly as long
    as asked for.

    Raises:
        ValueError: there is no tokenizer, or it has hardly any such words.
    """
    file = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # all that the library raises
        raise ValueError(f"{file} cannot be read: {error}") from error
    found = sorted(word for word in tokenizer.get_vocab() if re.fullmatch(f"{_SPACE}[a-z]+", word))
    texts = [word.replace(_SPACE, " ") for word in found]
    encoded = tokenizer.encode_batch(texts, add_special_tokens=False)
    words = [text for text, one in zip(texts, encoded, strict=True) if len(one.ids) == 1]
    if len(words) < _MIN_WORDS:
        raise ValueError(f"{file} has {len(words)} words of one token; prompts need {_MIN_WORDS}")
    return words


def prompts(words: Sequence[str], served: Served, seed: int) -> Iterator[Item]:
    """Endless random prompts; no two begin alike but by chance."""
    chance = random.Random(f"served {seed}")
    while True:
        text = "".join(chance.choices(words, k=served.input_tokens))
        yield Item(text, served.output_tokens)
