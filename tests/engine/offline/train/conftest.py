"""Fixtures: a corpus and a tokenizer of a few modules."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from gatewayd_engine.offline.train.corpus import Corpus, build
from gatewayd_engine.offline.train.stdlib_symbols import SourceFile, library_root
from gatewayd_engine.offline.train.tokenizer import train_tokenizer

MODULES = ("bisect.py", "json/__init__.py", "json/scanner.py", "textwrap.py")


@pytest.fixture(scope="session")
def files() -> list[SourceFile]:
    root = library_root()
    paths = [(root / name).relative_to(root) for name in MODULES]
    return [SourceFile(path, (root / path).read_text("utf-8")) for path in paths]


@pytest.fixture(scope="session")
def corpus(files: list[SourceFile]) -> Corpus:
    return build(files, seed=5, num_greetings=20)


@pytest.fixture(scope="session")
def tokenizer(corpus: Corpus) -> Tokenizer:
    return train_tokenizer(corpus, vocab_size=600)
