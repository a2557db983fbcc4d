"""Drafters with trained heads: when they draft, and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gatewayd_draft_eagle.config import EagleConfig
from gatewayd_draft_eagle.strategy import Eagle
from gatewayd_draft_medusa.config import MedusaConfig
from gatewayd_draft_medusa.strategy import Medusa
from gatewayd_engine.model import embedded
from gatewayd_engine.offline.train.heads_checkpoint import write_heads
from gatewayd_hooks.resources import EngineResources
from gatewayd_hooks.speculation import Features
from gatewayd_hooks.testing.fakes import engine_resources
from tests.plugins.drafters.draft_heads import (
    ACCURACY,
    HIDDEN,
    WORDS,
    batch_of,
    network,
    reader,
    resources_of,
    rows_of_tokens,
)


@pytest.mark.parametrize("build", [Medusa, Eagle])
def test_without_a_hidden_state_there_is_no_guess(model: Path, build: Callable[..., Any]) -> None:
    drafter = build(MedusaConfig() if build is Medusa else EagleConfig())
    drafter.open(resources_of(model))
    tokens = rows_of_tokens()
    batch = batch_of(tokens, [8, 8], [4, 4])
    assert drafter.propose(batch).counts.tolist() == [0, 0]
    # Row 0 up to the one that counts, row 1 one less.
    rows, positions = np.array([0, 0, 1]), np.array([5, 6, 5])
    ids = tokens[rows, positions].astype(np.int64)
    drafter.observe(Features(rows, positions, ids, torch.ones(3, HIDDEN)))
    assert drafter.propose(batch).counts.tolist() == [4, 0]
    drafter.admit(0)
    assert drafter.propose(batch).counts.tolist() == [0, 0]


@pytest.mark.parametrize("build", [Medusa, Eagle])
def test_heads_of_another_model_are_refused_in_a_sentence(
    model: Path, tmp_path: Path, build: Callable[..., Any]
) -> None:
    kind = build.__name__.lower()
    config = MedusaConfig if build is Medusa else EagleConfig

    def refusal(folder: Path | str, resources: EngineResources) -> str:
        with pytest.raises(ValueError, match="heads") as error:
            build(config(heads=str(folder))).open(resources)
        assert "\n" not in str(error.value)
        return str(error.value)

    resources = resources_of(model)
    write_heads(tmp_path / "other", network(kind), "x", WORDS.matrix + 0.1, ACCURACY)
    assert "trained for a model other" in refusal(tmp_path / "other", resources)
    nano = embedded.folder("nano")
    assert "hidden states of 384" in refusal(nano.with_name(f"nano-{kind}"), resources)
    others = "eagle" if kind == "medusa" else "medusa"
    assert f"not for '{kind}'" in refusal(model.with_name(f"words-{others}"), resources)
    assert "cannot be read" in refusal(broken(tmp_path / "broken"), resources)
    missing = refusal("", engine_resources(target=WORDS, read_heads=reader(tmp_path / "words")))
    assert f"gatewayd_engine.offline.train heads --kind {kind}" in missing


def broken(folder: Path) -> Path:
    folder.mkdir()
    (folder / "heads.json").write_text(json.dumps({"kind": "medusa"}))
    (folder / "heads.safetensors").write_bytes(b"\0" * 20)
    return folder
