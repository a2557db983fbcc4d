"""Fixtures: a store, and a gateway with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import says
from tests.gatewayd.gateway import Gateway
from tests.gatewayd.responses_gateway import ANSWER, serving
from tests.gatewayd.store_fixtures import copy_of


@pytest.fixture
def folder(fresh_store: Path, tmp_path: Path) -> Path:
    return copy_of(fresh_store, tmp_path / "store")


@pytest.fixture
async def gateway(text: TextModel, folder: Path) -> AsyncIterator[Gateway]:
    async with serving(text, folder, says(ANSWER, cached=1)) as served:
        yield served
