"""Forbidden words: no document or message replaces a term of the field by another phrase.

A reader who searches for "eviction", "speculative decoding" or "persistent" must find it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gatewayd.cli import app
from gatewayd.cli.authoring import commands
from gatewayd.cli.lazy import COMMANDS, load
from tests.docs.project import ROOT, document, documents, modules, relative

WORDS = {
    "(?:no|some|any|every)body": "no client, a user, another process, every request",
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
    "taken on(?! trust)": "admitted",
    "(?:told|asked|called|launched) no more": "disabled, quarantined, not called any more",
    "told again": "stable, repeated",
    "told apart|tell(?:s|ing)? (?:\\w+ ){1,3}apart": "distinguish",
    "(?:is|are|was|were) told (?:how|of|that|to|what|when|which)": "gets, is notified",
    "beside the steps?": "in the background, concurrently",
    "by turns": "alternating",
    "anew": "again, regenerate",
    "who waits": "waiting requests",
    "goes? (?:its|their) own ways?": "independent",
    "stands? where it stood|stays? as it was": "restored, not modified",
    "had better": "deferred, should",
    "twins?": "reference implementation",
    "rehears(?:e|es|ed|al)": "dry run",
    "takes? (?:\\w+ ){1,2}away": "remove",
    "by how like|likeness": "similarity",
    "surer": "more reliable",
    "on record": "recorded",
    "can be made again": "generated, cached",
    "one by itself|each by itself": "separately, individually",
    "refused with a sentence|the sentence (?:says|names)": "message",
}
"""Patterns, and the terms to use instead."""
PATTERN = re.compile(rf"\b(?:{'|'.join(WORDS)})\b", re.IGNORECASE)
HEADING = re.compile(r"^#+ .*$", re.MULTILINE)
HELP = "help of the command line"
SETTINGS = ("etc/gatewayd.toml", "etc/prometheus/alerts.yml")
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
DESCRIBING = {"description", "doc", "help", "short_help", "summary"}
"""Keyword arguments whose values are shown to users."""
LABEL = re.compile(r"[A-Za-z]{2,} [a-z]{2,}")
"""Text for people: other strings are names, styles and keys."""


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
    """Texts that are checked as a whole, by name."""
    pages = {
        each.name: each.path.read_text("utf-8")
        for each in documents()
        if not each.name.startswith("tests/third_party/")
    }
    # The help of commands is checked by itself, and names its command.
    head, mark, rest = pages["docs/cli.md"].partition("<!-- commands -->\n")
    pages["docs/cli.md"] = head + rest.partition("<!-- end -->")[2]
    assert mark
    unreleased = document("CHANGELOG.md").path.read_text("utf-8").split("\n## [")[1]
    assert unreleased.startswith("Unreleased")
    makefile = (ROOT / "Makefile").read_text("utf-8")
    return pages | {
        "CHANGELOG.md": unreleased,
        **{name: (ROOT / name).read_text("utf-8") for name in SETTINGS},
        "Makefile": "\n".join(re.findall(r"^[a-z-]+:.*## (.*)$", makefile, re.MULTILINE)),
        HELP: "\n".join(helps()),
    }


TEXTS = texts()


def found(text: str) -> list[str]:
    """Uses, also where a line ends within one."""
    return PATTERN.findall(" ".join(text.split()))


def shown(tree: ast.Module, *, has_labels: bool = False) -> Iterator[tuple[int, str]]:
    """Texts of a module that people read, with their lines.

    They are the first lines of docstrings, formats of log records, messages of exceptions and
    descriptions of fields.

    Args:
        tree: the module.
        has_labels: whether every other string that reads like text is one of them, as in a console.
    """
    docstrings = set()
    for node in ast.walk(tree):
        match node:
            case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                if text := ast.get_docstring(node):
                    docstrings.add(id(node.body[0].value))  # type: ignore[attr-defined]
                    yield getattr(node, "lineno", 1), text.splitlines()[0]
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=logger), attr=level), args=[what, *_]
            ):
                if level in LEVELS and "log" in logger:
                    yield node.lineno, _text(what)
            case ast.Raise(exc=ast.Call(args=args, keywords=keywords)):
                for each in (*args, *(k.value for k in keywords)):
                    yield node.lineno, _text(each)
            case ast.keyword(arg=name, value=what) if name in DESCRIBING:
                yield what.lineno, _text(what)
    for node in ast.walk(tree) if has_labels else ():
        if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in docstrings:
            text = _text(node)
            if LABEL.search(text):
                yield node.lineno, text


def _text(node: ast.expr) -> str:
    """The literal parts of a string expression; values stand as an ellipsis."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(_text(v) if isinstance(v, ast.Constant) else "\u2026" for v in values)
        case ast.BinOp(left=left, right=right):
            return _text(left) + _text(right)
        case ast.IfExp(body=body, orelse=orelse):
            return f"{_text(body)}\n{_text(orelse)}"
    return ""


def uses_in_sources() -> Iterator[str]:
    """Uses in sources, as ``path:line: text``."""
    for path, tree in modules().items():
        for line, text in shown(tree, has_labels=ROOT / "tui" in path.parents):
            if found(text):
                yield f"{relative(path)}:{line}: {text}"


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_no_document_uses_a_word_of_the_list(name: str) -> None:
    assert not found(TEXTS[name]), "use the term of the field"


def test_no_message_label_or_docstring_uses_one() -> None:
    assert sorted(set(uses_in_sources())) == []


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
        ("It is asked no more, and the lists are told apart.", 2),
        ("What is taken on trust", 0),
    ],
)
def test_a_use_is_told_from_other_text(text: str, uses: int) -> None:
    assert len(found(text)) == uses


PLANTED = '''
"""Keeps pages that are asked no more.

Others read by turns: only the first line is checked.
"""

def serve(name):
    """Free pages by turns."""
    _log.warning("observer %s is told no more", name)
    if name in ("by turns", "anew"):
        raise ValueError(f"{name}: what asks " "is taken on")
    print("Requests that are told no more")


rows: int = setting(1, doc="Tables are made anew.")
'''


@pytest.mark.parametrize(
    ("has_labels", "lines"), [(False, [1, 7, 9, 11, 15]), (True, [1, 7, 9, 10, 11, 12, 15])]
)
def test_planted_phrases_are_found_in_a_source(has_labels: bool, lines: list[int]) -> None:
    tree = ast.parse(PLANTED)
    texts = [(line, text) for line, text in shown(tree, has_labels=has_labels) if found(text)]
    assert sorted({line for line, _ in texts}) == lines


def test_every_source_is_read() -> None:
    rooms = {Path(relative(path)).parts[0] for path in modules()}
    assert rooms == {"gatewayd", "engine", "lang", "plugins", "tui"}
    assert sum(1 for tree in modules().values() for _ in shown(tree)) > 5000
