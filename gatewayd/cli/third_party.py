"""Commands that other distributions bring, named by the entry points ``gatewayd.commands``.

They are listed without being imported: what ``--help`` says of one is read from its source.
"""

from __future__ import annotations

import ast
import importlib.util
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

GROUP = "gatewayd.commands"


@cache
def commands() -> dict[str, EntryPoint]:
    """Entry points by name; of two with one name the first by distribution."""
    found = sorted(entry_points(group=GROUP), key=lambda each: (each.name, owner(each)))
    return {each.name: each for each in reversed(found)}


def owner(point: EntryPoint) -> str:
    """The distribution that brings it."""
    return point.dist.name if point.dist is not None else "a distribution without a name"


def summary(point: EntryPoint) -> str:
    """The first line of its documentation, or whose it is where there is none to read."""
    try:
        return _first_line(point) or f"Command of the package {owner(point)}."
    except Exception as error:  # noqa: BLE001 - a stranger's source may be anything
        return f"Broken command of the package {owner(point)}: {error}"


def _first_line(point: EntryPoint) -> str:
    spec = importlib.util.find_spec(point.module)  # imports packages around it, not itself
    if spec is None:
        raise ModuleNotFoundError(f"there is no module {point.module}")
    if spec.origin is None or not spec.origin.endswith(".py"):
        return ""
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == point.attr:
            return (ast.get_docstring(node) or "").partition("\n")[0]
    return (ast.get_docstring(tree) or "").partition("\n")[0]
