"""Fixtures: the embedded model's text side, an empty store, daemons over fake engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from gatewayd.text.text_model import TextModel
from gatewayd_engine.model.embedded import folder as embedded
from tests.daemon.conftest import start_daemon
from tests.gatewayd.store_fixtures import copy_of
from tests.security.killed_store import Killed, kill

__all__ = ["folder", "killed", "killed_once", "start_daemon", "text"]


@pytest.fixture(scope="session")
def text() -> TextModel:
    return TextModel.from_folder(embedded("nano"))


@pytest.fixture
def folder(fresh_store: Path, tmp_path: Path) -> Path:
    return copy_of(fresh_store, tmp_path / "store")


@pytest.fixture(scope="session")
def killed_once(fresh_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    return kill(fresh_store, tmp_path_factory.mktemp("killed") / "store")


@pytest.fixture
def killed(killed_once: Killed, tmp_path: Path) -> Killed:
    return killed_once._replace(folder=copy_of(killed_once.folder, tmp_path / "killed"))
