"""Conversion of Google-style docstrings to Markdown."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

_SECTIONS = ("Args", "Returns", "Raises", "Attributes")
_ENTRY = re.compile(r"(\w[\w, ]*): (.*)", re.DOTALL)


def markdown(docstring: str | None, indent: str = "") -> str:
    """Convert a docstring, with its sections as lists.

    Args:
        docstring: without the indentation of its code.
        indent: prefix of every line but the first.
    """
    text, sections = _split(docstring or "")
    blocks = text.split("\n\n")
    lines = [_line(blocks[0])]
    for block in blocks[1:]:
        lines += ["", _line(block)]
    for title, body in sections.items():
        if title in ("Args", "Raises"):
            verb = "raises " if title == "Raises" else ""
            lines += [f"- {verb}`{name}`: {meaning}" for name, meaning in _entries(body)]
        elif title == "Returns":
            lines.append(f"- returns: {_line(body)}")
    # Empty lines get no indentation, which would be trailing space.
    return f"\n{indent}".join(lines).replace(f"\n{indent}\n", "\n\n")


def plain(docstring: str | None) -> str:
    """Convert a docstring to one line, without sections other than ``Returns``."""
    text, sections = _split(docstring or "")
    returns = sections.get("Returns")
    more = f" Returns: {_line(returns)}" if returns else ""
    return _line(text) + more


def fields_of(node: ast.ClassDef) -> list[tuple[str, str]]:
    """Return the public fields of a class and their descriptions.

    Descriptions are taken from attribute docstrings or the class docstring.
    """
    _, sections = _split(ast.get_docstring(node) or "")
    described = dict(_entries(sections.get("Attributes", "")))
    found = []
    # The docstring of a field is the statement after it.
    for each, after in pairwise([*node.body, None]):
        match each:
            case ast.AnnAssign(target=ast.Name(id=name)):
                pass
            case ast.Assign(targets=[ast.Name(id=name)]):
                pass
            case _:
                continue
        meaning = described.get(name, "")
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            meaning = _line(str(after.value.value))
        if not name.startswith("_") and name != "model_config":
            found.append((name, meaning))
    return found


def _split(docstring: str) -> tuple[str, dict[str, str]]:
    """Split a docstring into the text before the sections and the body of each section."""
    parts = re.split(rf"^({'|'.join(_SECTIONS)}):\n", docstring, flags=re.MULTILINE)
    return parts[0].strip(), dict(zip(parts[1::2], parts[2::2], strict=True))


def _entries(body: str) -> Iterator[tuple[str, str]]:
    """Yield the ``name: meaning`` entries of a section; deeper indentation continues one."""
    for entry in re.split(r"\n(?=\s{4}\S)(?!\s{5})", f"\n{body}"):
        match = _ENTRY.match(entry.strip())
        if match:
            yield match[1], _line(match[2])


def _line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().replace("``", "`")
