"""Source files: described, short, and free of machine-specific paths."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.docs.project import ROOT, files, modules, relative

MOST_LINES = 450
TEXT = {".py", ".md", ".toml", ".sh", ".jinja", ".cfg", ".service", ""}
# Home folders and the like; /etc, /srv and /tmp are everywhere the same.
MACHINE = re.compile(r"(?<![\w.~])/(?:home|Users|root|work|mnt|opt)/\w+")


def source(path: Path) -> str:
    return path.read_text("utf-8")


def text_files() -> list[Path]:
    return [path for path in files() if path.suffix in TEXT]


def test_there_are_modules_to_look_at() -> None:
    assert len(modules()) > 100
    assert ROOT / "gatewayd/daemon/run.py" in modules()


def test_every_module_begins_by_saying_what_it_is() -> None:
    silent = [
        relative(path)
        for path, tree in modules().items()
        if not (ast.get_docstring(tree) or "").strip() or not source(path).startswith('"""')
    ]
    assert silent == []


def test_no_module_is_long() -> None:
    lengths = {relative(p): source(p).count("\n") for p in files() if p.suffix == ".py"}
    assert {path: n for path, n in lengths.items() if n > MOST_LINES} == {}


def test_no_file_names_a_folder_of_some_machine() -> None:
    found = {relative(p): MACHINE.findall(source(p)) for p in text_files()}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("see /" + "home/ann/models", True),
        ("see ~/models and /srv/models", False),
        ("https://host/work/item", False),
        ("engine/work/item", False),
    ],
)
def test_a_folder_of_a_machine_is_told_from_other_paths(text: str, is_one: bool) -> None:
    assert bool(MACHINE.search(text)) is is_one
