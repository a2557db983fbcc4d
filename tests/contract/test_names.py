"""Module names: public classes are unique, and folders are small."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.contract.test_layout import ROOT, packages

KIT = ROOT / "plugins/gatewayd_hooks/testing"
"""The conformance kit is not counted: its classes stand for those of plugins."""
MOST_MODULES = 25
FEWER = {"gatewayd": 6, "engine/gatewayd_engine": 4}
"""Roots hold rooms; a module there belongs to none."""


def sources() -> list[Path]:
    return [path for folder in packages() for path in folder.rglob("*.py")]


def public_classes(paths: Iterable[Path]) -> dict[str, list[Path]]:
    """Where each name is defined, at the top of a module."""
    found = defaultdict(list)
    for path in paths:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(path)
    return found


def shared_names(paths: Iterable[Path]) -> dict[str, list[Path]]:
    return {name: where for name, where in public_classes(paths).items() if len(where) > 1}


def crowded(paths: Iterable[Path], root: Path) -> dict[str, int]:
    """Folders with more modules than there may be."""
    counts = Counter(
        str(path.parent.relative_to(root)) for path in paths if path.name != "__init__.py"
    )
    return {name: n for name, n in counts.items() if n > FEWER.get(name, MOST_MODULES)}


def test_a_public_class_is_the_only_one_of_its_name() -> None:
    paths = [path for path in sources() if KIT not in path.parents]
    assert len(public_classes(paths)) > 1000
    assert shared_names(paths) == {}


def test_a_folder_can_be_looked_over() -> None:
    assert crowded(sources(), ROOT) == {}


def test_two_of_one_name_are_found(tmp_path: Path) -> None:
    texts = {
        "a": "class Shared: ...\nclass _Own: ...\n",
        "b": "class Shared: ...\nclass _Own: ...\ndef f():\n    class Inner: ...\n",
        "c": "class Inner: ...\n",
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    paths = sorted(tmp_path.iterdir())
    assert shared_names(paths) == {"Shared": paths[:2]}


@pytest.mark.parametrize(
    ("folder", "most"),
    [("gatewayd", 6), ("engine/gatewayd_engine", 4), ("gatewayd/http", 25)],
)
def test_a_crowded_folder_is_found(tmp_path: Path, folder: str, most: int) -> None:
    names = ["__init__", *(f"m{number}" for number in range(most))]
    paths = [tmp_path / folder / f"{name}.py" for name in names]
    assert crowded(paths, tmp_path) == {}
    assert crowded([*paths, tmp_path / folder / "more.py"], tmp_path) == {folder: most + 1}
