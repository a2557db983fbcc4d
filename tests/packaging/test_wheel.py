"""Wheel: holds the whole project and nothing else."""

from __future__ import annotations

import configparser
import email
import email.message
import json
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

from tests.contract.test_layout import packages

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
PACKAGES = [folder.relative_to(ROOT) for folder in packages()]
INFO = f"gatewayd-{PROJECT['version']}.dist-info"
DATA = f"gatewayd-{PROJECT['version']}.data/data"


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    """Every file of the wheel."""
    with ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> email.message.Message:
    """What the wheel says of itself."""
    with ZipFile(wheel) as archive:
        return email.message_from_string(archive.read(f"{INFO}/METADATA").decode())


def test_it_plants_only_our_names_in_site_packages(names: set[str]) -> None:
    tops = {name.split("/")[0] for name in names}
    packages = {package.name for package in PACKAGES}
    assert tops == packages | {INFO, DATA.split("/")[0]}
    assert all(top.startswith("gatewayd") for top in tops)


def test_it_has_every_file_of_every_package_and_no_other(names: set[str]) -> None:
    # A dot begins the names of tools' leavings, never those of ours.
    expected = {
        file.relative_to((ROOT / package).parent).as_posix()
        for package in PACKAGES
        for file in (ROOT / package).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts and not file.name.startswith(".")
    }
    assert {name for name in names if not name.startswith((INFO, DATA))} == expected


def test_every_package_says_that_it_is_typed(names: set[str]) -> None:
    assert {f"{package.name}/py.typed" for package in PACKAGES} <= names


def test_the_embedded_models_are_in_it_whole(wheel: Path, names: set[str]) -> None:
    with ZipFile(wheel) as archive:
        for model in ("nano", "nano-draft"):
            folder = f"gatewayd_engine/models/{model}"
            assert {f"{folder}/config.json", f"{folder}/tokenizer.json"} <= names
            weights = [name for name in names if name.startswith(folder) and ".safetensors" in name]
            for name in weights:
                assert archive.read(name) == (ROOT / "engine" / name).read_bytes()
            index = f"{folder}/model.safetensors.index.json"
            if index in names:
                shards = set(json.loads(archive.read(index))["weight_map"].values())
                assert {f"{folder}/{shard}" for shard in shards} < set(weights)
            else:
                assert weights == [f"{folder}/model.safetensors"]


def test_the_manual_of_the_configuration_is_installed(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        shipped = archive.read(f"{DATA}/share/gatewayd/gatewayd.toml")
    assert shipped == (ROOT / "etc" / "gatewayd.toml").read_bytes()


def test_the_units_are_installed(wheel: Path) -> None:
    folder = ROOT / "systemd"
    with ZipFile(wheel) as archive:
        shipped = {
            name.removeprefix(f"{DATA}/share/gatewayd/systemd/"): archive.read(name)
            for name in archive.namelist()
            if name.startswith(f"{DATA}/share/gatewayd/systemd/")
        }
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert {file.relative_to(folder).as_posix(): file.read_bytes() for file in files} == shipped


def test_it_offers_what_the_project_says(wheel: Path) -> None:
    parser = configparser.RawConfigParser(delimiters="=")
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their case
    with ZipFile(wheel) as archive:
        parser.read_string(archive.read(f"{INFO}/entry_points.txt").decode())
    assert {group: dict(parser[group]) for group in parser.sections()} == {
        "console_scripts": PROJECT["scripts"],
        **PROJECT["entry-points"],
    }


def test_it_asks_for_what_the_project_asks_for(metadata: email.message.Message) -> None:
    asked = {Requirement(text) for text in metadata.get_all("Requires-Dist", [])}
    assert {each for each in asked if "extra" not in str(each.marker)} == {
        Requirement(text) for text in PROJECT["dependencies"]
    }
    assert metadata["Requires-Python"] == PROJECT["requires-python"]


def test_its_licence_and_its_front_page_are_in_it(
    names: set[str], metadata: email.message.Message
) -> None:
    assert metadata["License-Expression"] == PROJECT["license"]
    assert f"{INFO}/licenses/LICENSE" in names
    front_page = (ROOT / PROJECT["readme"]).read_text("utf-8").strip()
    assert str(metadata.get_payload()).strip() == front_page
