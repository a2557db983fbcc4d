"""Fixtures of the Hub: a server, and a store that is empty."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from tests.gatewayd.hub.fake_hub import FakeHub


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub().running() as hub:
        yield hub


@pytest.fixture
def store(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The store's folder; pulls of this process use it and the server."""
    folder = tmp_path / "store"
    monkeypatch.setenv("HF_HUB_CACHE", str(folder))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    # As the library reads them from the environment when it is imported.
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(
        constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        hub.url + "/{repo_id}/resolve/{revision}/{filename}",
    )
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    return folder
