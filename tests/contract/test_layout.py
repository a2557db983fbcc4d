"""Plugin layout: built-ins are installed like third-party plugins, and listed everywhere."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.contract.plugin_lists import PLUGINS, PROJECT_FILE, renewed

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads(PROJECT_FILE.read_text())
TOOL = PROJECT["tool"]
SOURCE_ROOTS = ("engine", "lang", "migrations", "plugins", "tui")


def packages() -> list[Path]:
    """Every package of the project, as a folder."""
    nested = [p for root in SOURCE_ROOTS for p in (ROOT / root).glob("gatewayd_*/")]
    return [ROOT / "gatewayd", *nested]


def test_there_are_built_ins() -> None:
    assert len(PLUGINS) >= 11


def test_the_wheel_holds_every_root_and_drops_its_name() -> None:
    wheel = TOOL["hatch"]["build"]["targets"]["wheel"]
    assert wheel["sources"] == list(SOURCE_ROOTS)
    assert wheel["only-include"] == ["gatewayd", *SOURCE_ROOTS]
    beside = {str(p.relative_to(ROOT)) for r in SOURCE_ROOTS for p in (ROOT / r).glob("*.*")}
    assert {f"/{path}" for path in beside} == set(wheel["exclude"])


def test_every_built_in_has_an_entry_point_and_every_entry_point_a_folder() -> None:
    modules = PROJECT["project"]["entry-points"]["gatewayd"].values()
    assert sorted(set(modules)) == PLUGINS


def test_the_import_rules_know_every_package() -> None:
    roots = TOOL["importlinter"]["root_packages"]
    assert sorted(roots) == sorted(p.name for p in packages())


def test_the_import_rules_know_every_built_in() -> None:
    text = PROJECT_FILE.read_text()
    assert renewed(text, PLUGINS) == text, "run python -m tests.contract.plugin_lists"
    assert renewed(text, PLUGINS[1:]) != text
    layers, forbidden = (
        next(c for c in TOOL["importlinter"]["contracts"] if c["name"] == name)
        for name in (
            "Rooms depend downward only; no strategy is imported by name",
            "The daemon names no strategy",
        )
    )
    (siblings,) = [layer.split(" | ") for layer in layers["layers"] if " | " in layer]
    beside = ["gatewayd_engine", "gatewayd_lang", "gatewayd_migrations"]
    assert siblings == beside + PLUGINS
    assert forbidden["forbidden_modules"] == PLUGINS


@pytest.mark.parametrize("root", [*SOURCE_ROOTS, "tests"])
def test_a_source_root_is_no_package(root: str) -> None:
    assert (ROOT / root).is_dir()
    assert not (ROOT / root / "__init__.py").exists()


@pytest.mark.parametrize("package", [p.name for p in packages()])
def test_every_package_says_that_it_is_typed(package: str) -> None:
    (folder,) = [p for p in packages() if p.name == package]
    assert (folder / "py.typed").exists()
    assert (folder / "__init__.py").exists()


@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_built_in_has_the_files_of_every_plugin(plugin: str) -> None:
    files = {p.name for p in (ROOT / "plugins" / plugin).iterdir() if p.is_file()}
    assert {"__init__.py", "config.py", "strategy.py", "README.md", "py.typed"} <= files
