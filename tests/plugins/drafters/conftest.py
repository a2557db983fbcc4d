"""Fixtures: a checkpoint with draft heads."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import save_file

from gatewayd_engine.offline.train.heads_checkpoint import write_heads
from tests.plugins.drafters.draft_heads import ACCURACY, WORDS, network


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the fake model, with heads beside it."""
    folder = tmp_path_factory.mktemp("models") / "words"
    folder.mkdir()
    save_file({"model.embed_tokens.weight": WORDS.matrix}, folder / "model.safetensors")
    for kind in ("medusa", "eagle"):
        beside = folder.with_name(f"words-{kind}")
        write_heads(beside, network(kind), "words", WORDS.matrix, ACCURACY)
    return folder
