"""What the requests of a bench ask for.

Synthetic prompts are pieces of Python's standard library, so that a tokenizer and a prefix cache
meet real text; each begins with a few random tokens of its own, so that no two share a prefix by
accident. A server that tokenizes gets token ids, exactly as many as asked for; any other gets
text of about that length, and its usage says how much it was.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gatewayd.cli.client.api import ApiClient

OWN_TOKENS = 4  # random ones at the start of each prompt: 4096**4 beginnings
CHARACTERS_PER_TOKEN = 4  # of a tokenizer that cannot be asked
CORPUS_CHARACTERS = 60_000


class Item(NamedTuple):
    """One request."""

    prompt: list[int] | str | list[dict[str, Any]]
    """Token ids, text, or the messages of a chat."""
    output_tokens: int


@dataclass(frozen=True, slots=True)
class RequestShape:
    """How long synthetic requests are, in tokens.

    Attributes:
        prompt_tokens: of the own part.
        output_tokens: asked for.
        shared_prefix_tokens: the same for all, in front of the own part.
        spread: sigma of a log-normal factor around both lengths; 0 keeps them fixed.
    """

    prompt_tokens: int = 64
    output_tokens: int = 128
    shared_prefix_tokens: int = 0
    spread: float = 0.0


def corpus_text() -> str:
    """Real text that every installation has."""
    import argparse
    import textwrap
    import typing

    text = "\n".join(inspect.getsource(module) for module in (textwrap, argparse, typing))
    return text[:CORPUS_CHARACTERS]


async def corpus_for(client: ApiClient, model: str, *, as_text: bool) -> Sequence[int] | str:
    """The corpus in the model's tokens, or as text where it must be or cannot be tokenized."""
    text = corpus_text()
    ids = None if as_text else await client.tokenize(text, model)
    return ids or text


def synthetic(corpus: Sequence[int] | str, shape: RequestShape, seed: int) -> Iterator[Item]:
    """Endless requests of a shape; the same seed gives the same ones."""
    chance = random.Random(seed)
    unit = CHARACTERS_PER_TOKEN if isinstance(corpus, str) else 1
    # The prefix depends on the seed alone, never on how much was drawn before.
    shared = _piece(corpus, shape.shared_prefix_tokens * unit, random.Random(f"prefix {seed}"))
    while True:
        factor = chance.lognormvariate(0, shape.spread) if shape.spread else 1.0
        prompt = _piece(corpus, max(1, round(shape.prompt_tokens * factor)) * unit, chance)
        factor = chance.lognormvariate(0, shape.spread) if shape.spread else 1.0
        output = max(1, round(shape.output_tokens * factor))
        if isinstance(shared, str) or isinstance(prompt, str):
            yield Item(f"{shared}{prompt}", output)
        else:
            yield Item(shared + prompt, output)


def _piece(corpus: Sequence[int] | str, length: int, chance: random.Random) -> list[int] | str:
    """A stretch of the corpus, repeated if it is short, with an own beginning."""
    start = chance.randrange(len(corpus))
    if isinstance(corpus, str):
        own = f"{chance.getrandbits(64):016x} "[:length]
        text = corpus[start:] + corpus * (1 + length // len(corpus))
        return own + text[: length - len(own)]
    own_ids = chance.choices(corpus, k=min(OWN_TOKENS, length))
    ids = [*corpus[start : start + length]]
    while len(ids) < length:
        ids += corpus[: length - len(ids)]
    return own_ids + ids[: length - len(own_ids)]


class _Line(msgspec.Struct):
    prompt: str | list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    max_tokens: int | None = None


def from_file(path: Path, output_tokens: int, *, chat: bool) -> list[Item]:
    """Requests from a JSON-lines file.

    A line is a string, or an object with ``prompt`` (text or token ids) or ``messages``, and
    perhaps ``max_tokens``.

    Raises:
        ValueError: names the line that the endpoint cannot take, or says that there is none.
    """
    items: list[Item] = []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not text.strip():
            continue
        try:
            line = msgspec.json.decode(text, type=str | _Line)
        except msgspec.DecodeError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
        if isinstance(line, str):
            line = _Line(prompt=line)
        prompt = line.messages if chat and line.messages else line.prompt
        if not prompt or (chat and isinstance(line.prompt, list)):
            wanted = "messages, or a prompt as text" if chat else "a prompt, text or token ids"
            raise ValueError(f"{path}, line {number}: this endpoint needs {wanted}")
        items.append(Item(prompt, line.max_tokens or output_tokens))
    if not items:
        raise ValueError(f"{path} has no prompt in it")
    return items
