"""Fixtures: a store for batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gatewayd.store_fixtures import copy_of


@pytest.fixture
def folder(fresh_store: Path, tmp_path: Path) -> Path:
    return copy_of(fresh_store, tmp_path / "store")
