"""Imports of a plugin outside of the plugin contract, read from its source."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from gatewayd_hooks.host.catalog import Catalog

CONTRACT = "gatewayd_hooks"
_INTERNALS = frozenset({"gatewayd", "gatewayd_engine"})


def imports_outside_contract(module: str) -> list[str]:
    """List imports of the daemon, the engine or another plugin, anywhere in a plugin's package.

    Args:
        module: module of the entry point, ``package.module`` or ``package.module:attribute``.

    Returns:
        One clause for each, such as ``strategy.py:7 imports gatewayd_engine.core.engine_core``.
    """
    package = module.partition(":")[0].partition(".")[0]
    strange = (_INTERNALS | _plugins()) - {package}
    return [
        f"{file.name}:{line} imports {name}"
        for file in _sources(package)
        for line, name in _imports(file)
        if name.partition(".")[0] in strange
    ]


def _plugins() -> frozenset[str]:
    entries = Catalog.installed().entries
    return frozenset(entry.module.partition(":")[0].partition(".")[0] for entry in entries)


def _sources(package: str) -> list[Path]:
    """Source files of a package; none if it has no source."""
    try:
        # Of the top-level package only: finding a submodule would import its parents.
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return []
    if spec is None:
        return []
    folders = spec.submodule_search_locations
    if folders is not None:
        return sorted(file for folder in folders for file in Path(folder).rglob("*.py"))
    return [Path(spec.origin)] if spec.origin and spec.origin.endswith(".py") else []


def _imports(file: Path) -> Iterator[tuple[int, str]]:
    try:
        tree = ast.parse(file.read_text("utf-8"))
    except (OSError, SyntaxError, ValueError):
        return  # reported when it is imported
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        # Relative imports stay within the package.
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.lineno, node.module
