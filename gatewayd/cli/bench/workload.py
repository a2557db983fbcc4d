"""Prompts of benchmark requests, synthetic or from a file.

Synthetic prompts are pieces of Python's standard library, so that tokenizer and prefix cache see
real text; each starts with a few random tokens, so that no two share a prefix by accident. A server
with ``/tokenize`` gets token ids of the exact length; others get text of about that length, and the
reported usage has the actual one.
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

OWN_TOKENS = 4  # random tokens at the start of each prompt: 4096**4 different starts
CHARACTERS_PER_TOKEN = 4  # estimate for servers without /tokenize
CORPUS_CHARACTERS = 60_000


class Item(NamedTuple):
    """Prompt and output length of one request."""

    prompt: list[int] | str | list[dict[str, Any]]
    """Token ids, text, or the messages of a chat."""
    output_tokens: int


@dataclass(frozen=True, slots=True)
class RequestShape:
    """Lengths of synthetic requests, in tokens.

    Attributes:
        prompt_tokens: prompt length, without the shared prefix.
        output_tokens: output length.
        shared_prefix_tokens: length of a prefix that all prompts share.
        spread: sigma of a log-normal factor on both lengths; 0 for fixed lengths.
    """

    prompt_tokens: int = 64
    output_tokens: int = 128
    shared_prefix_tokens: int = 0
    spread: float = 0.0


def corpus_text() -> str:
    """Return real text that every installation has: source code of the standard library."""
    import argparse
    import textwrap
    import typing

    text = "\n".join(inspect.getsource(module) for module in (textwrap, argparse, typing))
    return text[:CORPUS_CHARACTERS]


async def corpus_for(client: ApiClient, model: str, *, as_text: bool) -> Sequence[int] | str:
    """Return the corpus as token ids, or as text if requested or if it cannot be tokenized."""
    text = corpus_text()
    ids = None if as_text else await client.tokenize(text, model)
    return ids or text


def synthetic(corpus: Sequence[int] | str, shape: RequestShape, seed: int) -> Iterator[Item]:
    """Yield requests of a shape forever, deterministic for a seed."""
    chance = random.Random(seed)
    unit = CHARACTERS_PER_TOKEN if isinstance(corpus, str) else 1
    # The prefix depends on the seed alone, not on the state of the random generator.
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
    """Cut a piece of the corpus, repeated if it is short, with a random start of its own."""
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
    """Read requests from a JSON-lines file.

    A line is a string, or an object with ``prompt`` (text or token ids) or ``messages``, and
    optionally ``max_tokens``.

    Raises:
        ValueError: a line is invalid for the endpoint, or there is none; the message names it.
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
