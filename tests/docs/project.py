"""Project files as text, and parsed Markdown."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
_LEAVINGS = {"build", "dist", "out", "__pycache__"}
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


class Block(NamedTuple):
    """A fenced block."""

    language: str
    text: str


class Document(NamedTuple):
    """A Markdown file, taken apart."""

    path: Path
    prose: str
    blocks: list[Block]

    @property
    def name(self) -> str:
        return relative(self.path)

    @property
    def spans(self) -> list[str]:
        """What stands in backquotes outside of blocks."""
        return _SPAN.findall(self.prose)

    @property
    def links(self) -> list[str]:
        """Targets inside the project."""
        return [t for t in _LINK.findall(self.prose) if not re.match(r"\w+:", t)]

    @property
    def anchors(self) -> set[str]:
        """Names of its headings, as a browser sees them."""
        headings = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", h) for h in _HEADING.findall(self.prose))
        return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def files() -> tuple[Path, ...]:
    """Every file but those of tools, environments and builds."""
    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = sorted(
            f for f in folders if f not in _LEAVINGS and (not f.startswith(".") or f == ".ci")
        )
        # In a work tree of its own, .git is a file.
        found += [Path(folder, name) for name in sorted(names) if name != ".git"]
    return tuple(found)


@cache
def documents() -> tuple[Document, ...]:
    """Every Markdown file."""
    return tuple(_read(path) for path in files() if path.suffix == ".md")


def document(name: str) -> Document:
    (found,) = [d for d in documents() if d.name == name]
    return found


def _read(path: Path) -> Document:
    text = path.read_text("utf-8")
    blocks = [Block(*match) for match in _FENCE.findall(text)]
    return Document(path, _FENCE.sub("", text), blocks)


@cache
def modules() -> dict[Path, ast.Module]:
    """Every module of the rooms, parsed."""
    rooms = tuple(ROOT / room for room in ("gatewayd", "engine", "lang", "plugins", "tui"))
    return {
        path: ast.parse(path.read_text("utf-8"))
        for path in files()
        if path.suffix == ".py" and any(room in path.parents for room in rooms)
    }


@cache
def members() -> dict[str, set[str]]:
    """What classes have, by the name of the class; the same name twice is joined."""
    found: dict[str, set[str]] = {}
    for tree in modules().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, set()).update(_names(node))
    return found


def _names(node: ast.ClassDef) -> Iterator[str]:
    for child in node.body:
        match child:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)]):
                yield name
