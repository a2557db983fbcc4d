"""Fixtures: the embedded model's text side, and an empty store."""

from __future__ import annotations

from pathlib import Path

import pytest

from gatewayd.text.model import TextModel
from gatewayd_engine.embedded import folder as embedded
from tests.gatewayd.durables import copy_of


@pytest.fixture(scope="session")
def text() -> TextModel:
    return TextModel.from_folder(embedded("nano"))


@pytest.fixture
def folder(fresh_store: Path, tmp_path: Path) -> Path:
    return copy_of(fresh_store, tmp_path / "store")
