"""Forbidden words: no document hides a term of the field.

A reader who searches for "eviction", "speculative decoding" or "persistent" must find it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from gatewayd.cli import app
from gatewayd.cli.authoring import commands
from gatewayd.cli.lazy import COMMANDS, load
from tests.docs.project import ROOT, document, documents

WORDS = {
    "nobody": "no client, no sequence, none",
    "somebody": "a user, another process",
    "whoever": "the client that, any process that",
    "strangers?": "third-party, untrusted",
    "(?:few|fewer) bits": "quantized, low-bit",
    "(?:give|gives|given|gave|giving) up": "evict, release, free",
    "who computes next": "scheduling",
    "what is kept": "persistent, stored, cached",
    "what is promised": "SLO, goal",
    "guess(?:es|ing|ed)? ahead": "speculative decoding",
    "few places|all places|places in the pool": "tokens, positions, KV slots",
    "places to fill in": "generation, gen()",
    "in (?:its|their|another's) turn": "round-robin",
    "products? of (?:few|fewer) bits": "quantized matmul",
}
"""Patterns, and what the field says."""
PATTERN = re.compile(rf"\b(?:{'|'.join(WORDS)})\b", re.IGNORECASE)
HEADING = re.compile(r"^#+ .*$", re.MULTILINE)
HELP = "help of the command line"


def helps() -> Iterator[str]:
    """Every help of the command line."""
    yield app.info.help or ""
    yield from (each.summary for each in COMMANDS.values())
    for name in commands.names():
        yield from _helps(load(name))


def _helps(command: Any) -> Iterator[str]:
    yield command.help or ""
    yield from (each.help or "" for each in command.params)
    for sub in getattr(command, "commands", {}).values():
        yield from _helps(sub)


def texts() -> dict[str, str]:
    """What is held to the list, by its name."""
    pages = {
        each.name: each.path.read_text("utf-8")
        for each in documents()
        if each.name == "README.md" or each.name.startswith("docs/")
    }
    head, mark, rest = pages["docs/cli.md"].partition("<!-- commands -->\n")
    pages["docs/cli.md"] = head + rest.partition("<!-- end -->")[2]
    assert mark
    unreleased = document("CHANGELOG.md").path.read_text("utf-8").split("\n## [")[1]
    assert unreleased.startswith("Unreleased")
    return pages | {
        "CHANGELOG.md": unreleased,
        "etc/gatewayd.toml": (ROOT / "etc/gatewayd.toml").read_text("utf-8"),
        HELP: "\n".join(helps()),
    }


TEXTS = texts()


def found(text: str) -> list[str]:
    """Uses, also where a line ends within one."""
    return PATTERN.findall(" ".join(text.split()))


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_no_document_uses_a_word_of_the_list(name: str) -> None:
    assert not found(TEXTS[name]), "say what the field says"


def test_no_heading_has_one() -> None:
    pages = [each for each in documents() if each.name in TEXTS]
    headings = [heading for page in pages for heading in HEADING.findall(page.prose)]
    assert len(headings) > 300
    assert [h for h in headings if found(h)] == []


@pytest.mark.parametrize(
    ("text", "uses"),
    [
        ("Pages that nobody\nholds are given\nup.", 2),
        ("Cached pages without references are evicted.", 0),
        ("Whoever asks, and strangers too", 2),
        ("give upper bounds", 0),
    ],
)
def test_a_use_is_told_from_other_text(text: str, uses: int) -> None:
    assert len(found(text)) == uses
