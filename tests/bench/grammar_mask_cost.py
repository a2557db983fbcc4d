"""Benchmark: grammar compilation and mask time, against a decode step's.

Compiles, and fills masks for 1, 32 and 256 sequences that stand at different places, with the
embedded model's 4,096 tokens and with 128,000 made-up ones.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gatewayd_engine.model import embedded
from gatewayd_hooks.guiding import GuideSpec, GuideStrategy, Matcher
from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.strategy import Kind
from gatewayd_hooks.testing.fakes import engine_resources
from tests.plugins.guides.guides import SCHEMAS, Tokens, schema_spec

_ROUNDS = 30
_TREE = next(case for case in SCHEMAS if case["name"] == "a tree")
_SPECS = {
    "any object": (GuideSpec("json_object", ""), '{"a": ["some text", {"b": 12.5, "c": null}]}'),
    "a tree": (schema_spec(_TREE), json.dumps(_TREE["valid"][1])),
    "an order": (
        GuideSpec(
            "json_schema",
            json.dumps(
                {
                    "type": "object",
                    "properties": {
                        "id": {"type": "integer"},
                        "status": {"enum": ["open", "paid", "sent"]},
                        "lines": {
                            "type": "array",
                            "items": {
                                "type": "object",
                                "properties": {
                                    "name": {"type": "string"},
                                    "count": {"type": "integer"},
                                },
                                "required": ["name", "count"],
                                "additionalProperties": False,
                            },
                        },
                    },
                    "required": ["id", "status", "lines"],
                    "additionalProperties": False,
                }
            ),
        ),
        '{"id": 12, "status": "paid", "lines": [{"name": "green tea", "count": 3}]}',
    ),
    "a date": (GuideSpec("regex", "[0-9]{4}-[0-9]{2}-[0-9]{2}"), "2024-02-29"),
}


def made_up(folder: Path, size: int) -> None:
    """A tokenizer of all bytes and many words."""
    file = json.loads((embedded.folder() / "tokenizer.json").read_text("utf-8"))
    draw = random.Random(1)
    vocab: dict[str, int] = file["model"]["vocab"]
    letters = [word for word in vocab if len(word) in (2, 3) and word.isascii()]
    while len(vocab) < size:
        vocab.setdefault("".join(draw.choices(letters, k=draw.randint(1, 4))), len(vocab))
    (folder / "tokenizer.json").write_text(json.dumps(file), encoding="utf-8")


def places(guide: GuideStrategy, spec: GuideSpec, text: str, count: int) -> list[Matcher]:
    """Matchers that stand at different places of a text."""
    grammar, tokens = guide.compile(spec), Tokens().of(text)
    matchers = []
    for i in range(count):
        matcher = grammar.start()
        matcher.accept(tokens[: i % len(tokens)])
        matchers.append(matcher)
    return matchers


def rows(name: str, folder: str, vocab_size: int) -> Iterator[str]:
    """Lines of the table for one guide and one vocabulary."""
    guide: GuideStrategy = PluginHost(Catalog.installed()).strategy(Kind.GUIDE, name, {})
    began = time.perf_counter()
    guide.open(engine_resources(vocab_size=vocab_size, eos_token_ids=(0, 2), folder=folder))
    opening = time.perf_counter() - began
    for what, (spec, text) in _SPECS.items():
        began = time.perf_counter()
        guide.compile(spec)
        compiling = time.perf_counter() - began
        cells = []
        for count in (1, 32, 256):
            matchers = places(guide, spec, text, count)
            masks = np.zeros((count, -(-vocab_size // 32)), np.int32)
            guide.fill_many(matchers, masks)
            began = time.perf_counter()
            for _ in range(_ROUNDS):
                guide.fill_many(matchers, masks)
            cells.append(f"{(time.perf_counter() - began) / _ROUNDS / count * 1e6:.1f}")
        yield (
            f"| {name} | {vocab_size:,} | {opening * 1e3:.0f} | {what} | {compiling * 1e3:.1f} | "
            f"{' | '.join(cells)} |"
        )
    guide.close()


def main() -> None:
    """Print the table."""
    print(
        "| guide | tokens | open, ms | grammar | compile, ms | 1, µs | 32, µs each | 256, µs each |"
    )
    print("| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        made_up(Path(folder), 128_000)
        for name in ("llguidance", "xgrammar"):
            for where, size in ((str(embedded.folder()), 4096), (folder, 128_000)):
                for row in rows(name, where, size):
                    print(row, flush=True)


if __name__ == "__main__":
    main()
