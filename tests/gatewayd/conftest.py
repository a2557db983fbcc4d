"""Fixtures: the embedded model's text side."""

from __future__ import annotations

from pathlib import Path

import pytest

from gatewayd.text.text_model import TextModel
from gatewayd_engine.model.embedded import folder


@pytest.fixture(scope="session")
def nano() -> Path:
    return folder("nano")


@pytest.fixture(scope="session")
def text(nano: Path) -> TextModel:
    return TextModel.from_folder(nano)
