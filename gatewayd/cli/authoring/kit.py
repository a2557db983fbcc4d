"""Look-up of the conformance kit's class for a kind, without importing the kit.

The kit imports pytest, numpy and for some kinds torch, none of which is needed for its names.
"""

from __future__ import annotations

import ast
import importlib.util
from functools import cache
from pathlib import Path
from typing import NamedTuple

from gatewayd_hooks.host.kinds import KINDS
from gatewayd_hooks.strategy import Kind

KIT = "gatewayd_hooks.testing"
PLUGINS = "GATEWAYD_TEST_PLUGINS"
"""Environment variable with the path of the list of plugins that ``suite`` tests."""
RECORD = "GATEWAYD_TEST_RECORD"
"""Environment variable with the path of the file that ``recorder`` appends to."""

_NO_STRATEGY = {Kind.OBSERVER: "object", Kind.CONSOLE: "ModuleType"}
"""Return annotation of ``make`` for the kinds that only have hooks."""


class KitClass(NamedTuple):
    """Class of the conformance kit.

    Attributes:
        module: its module.
        name: its name.
        builds: return annotation of its ``make``, usually a Protocol.
        tests: names of its tests, in order.
    """

    module: str
    name: str
    builds: str
    tests: tuple[str, ...]


def conformance_of(kind: Kind) -> KitClass:
    """Return the kit's class for a kind.

    Raises:
        LookupError: the kit has none.
    """
    builds = KINDS[kind].protocol.__name__ if kind in KINDS else _NO_STRATEGY[kind]
    for found in kit_classes():
        if found.builds == builds:
            return found
    raise LookupError(f"{KIT} has no class for {kind}")


@cache
def kit_classes() -> tuple[KitClass, ...]:
    """Parse the kit and return every conformance class with an annotated ``make``."""
    spec = importlib.util.find_spec(KIT)
    folders = [] if spec is None else spec.submodule_search_locations or []
    return tuple(
        KitClass(_module(Path(folder), file), node.name, builds, _tests(node))
        for folder in folders
        for file in sorted([*Path(folder).glob("*.py"), *Path(folder).glob("targets/*.py")])
        for node in ast.parse(file.read_text("utf-8")).body
        if isinstance(node, ast.ClassDef)
        and node.name.endswith("Conformance")
        and (builds := _built_by(node))
    )


def _module(folder: Path, file: Path) -> str:
    return ".".join((KIT, *file.relative_to(folder).with_suffix("").parts))


def _built_by(node: ast.ClassDef) -> str:
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name == "make" and method.returns:
            # Without type parameters, as Protocols are named.
            return ast.unparse(method.returns).partition("[")[0]
    return ""


def _tests(node: ast.ClassDef) -> tuple[str, ...]:
    return tuple(
        method.name
        for method in node.body
        if isinstance(method, ast.FunctionDef) and method.name.startswith("test_")
    )
