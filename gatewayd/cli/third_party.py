"""Third-party commands, from entry points of the group ``gatewayd.commands``.

They are listed without being imported: the summaries in ``--help`` are read from their source.
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
    """Return entry points by name; of several with one name, the first by distribution."""
    found = sorted(entry_points(group=GROUP), key=lambda each: (each.name, owner(each)))
    # A dict keeps the last of equal names, which in reverse order is the first by distribution.
    return {each.name: each for each in reversed(found)}


def owner(point: EntryPoint) -> str:
    """Return the name of the distribution of an entry point."""
    return point.dist.name if point.dist is not None else "a distribution without a name"


def summary(point: EntryPoint) -> str:
    """Return the first line of a command's docstring, or a line that names its distribution."""
    try:
        return _first_line(point) or f"Command of the package {owner(point)}."
    except Exception as error:  # noqa: BLE001 - third-party source may be anything
        return f"Broken command of the package {owner(point)}: {error}"


def _first_line(point: EntryPoint) -> str:
    spec = importlib.util.find_spec(point.module)  # imports parent packages, not the module
    if spec is None:
        raise ModuleNotFoundError(f"there is no module {point.module}")
    if spec.origin is None or not spec.origin.endswith(".py"):
        return ""
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == point.attr:
            return (ast.get_docstring(node) or "").partition("\n")[0]
    return (ast.get_docstring(tree) or "").partition("\n")[0]
