"""Checkpoints that transformers cannot serve end with one sentence that names the file."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Model, LlamaModel

from gatewayd_engine.model.loading.safetensors_headers import LoadError
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_model_transformers import strategy
from gatewayd_model_transformers.blueprint import trace_model
from gatewayd_model_transformers.strategy import TransformersBackend
from tests.engine.core.conftest import build
from tests.engine.core.models.tiny_families import write_tiny


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"n_head": "a"}, "GPT2LMHeadModel is not served|config.json: transformers cannot"),
        ({"n_positions": "9"}, "GPT2LMHeadModel is not served|config.json: transformers cannot"),
        ({"dtype": "load"}, "GPT2LMHeadModel is not served|config.json: transformers cannot"),
        ({"model_type": ["gpt2"]}, "config.json: transformers has no model_type"),
        ({"n_positions": 1 << 30}, "its context of 1073741824 tokens is above 2097152"),
        ({"n_layer": 1 << 20}, "config.json: n_layer is 1048576, above 512"),
    ],
)
def test_a_config_that_makes_no_model_is_refused(
    tmp_path: Path, changed: dict[str, Any], reason: str
) -> None:
    write_tiny(tmp_path, "gpt2")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    with pytest.raises(ValueError, match=reason):
        trace_model(str(tmp_path), None)


@pytest.mark.parametrize("text", ["[1]", "{", "3"])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_a_file_that_is_no_object_is_named(tmp_path: Path, name: str, text: str) -> None:
    write_tiny(tmp_path, "gpt2")
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=f"{name} (is no JSON object|cannot be read)"):
        trace_model(str(tmp_path), None)


def test_another_file_is_not_read_in_place_of_the_checked_one(tmp_path: Path) -> None:
    write_tiny(tmp_path, "gpt2")
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    other = {**values, "n_embd": 2 * values["n_embd"]}
    (tmp_path / "config.1.0.json").write_text(json.dumps(other))
    path.write_text(json.dumps({**values, "configuration_files": ["config.1.0.json"]}))
    assert trace_model(str(tmp_path), None).facts.hidden_size == values["n_embd"]


@pytest.mark.parametrize("installed", ["4.57.1", "5.22.9"])
def test_an_old_library_is_refused_with_the_command(
    monkeypatch: pytest.MonkeyPatch, installed: str
) -> None:
    monkeypatch.setattr(strategy, "version", lambda _: installed)
    with pytest.raises(ValueError, match=f"{installed} is installed: pip install 'gatewayd"):
        TransformersBackend().open(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_model_that_counts_positions_by_itself_is_refused(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny(tmp_path, family)
    backend = StrategyChoice("transformers")
    build(tmp_path, model_backend=backend).core.strategies.close()
    kind = {"gpt2": GPT2Model, "llama": LlamaModel}[family]
    forward = kind.forward

    @functools.wraps(forward)
    def counting(self: Any, *args: Any, position_ids: torch.Tensor, **options: Any) -> Any:
        counted = torch.arange(position_ids.shape[1], device=position_ids.device)
        return forward(self, *args, position_ids=counted.unsqueeze(0), **options)

    monkeypatch.setattr(kind, "forward", counting)
    (other := tmp_path / "other").symlink_to(tmp_path)
    with pytest.raises(LoadError, match="is not served by the model backend transformers: it cou"):
        build(other, model_backend=backend)


def test_infinity_is_read_as_transformers_writes_it(tmp_path: Path) -> None:
    write_tiny(tmp_path, "mamba2")
    assert '"__float__": "Infinity"' in (tmp_path / "config.json").read_text()
    with pytest.raises(ValueError, match="its layers have a recurrent state"):
        trace_model(str(tmp_path), None)
