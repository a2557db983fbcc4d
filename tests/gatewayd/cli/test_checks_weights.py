"""The doctor's look at weights: what an engine would refuse is told before one is started."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from gatewayd.cli.checks_weights import expected_bytes, weights
from gatewayd.config import Config
from gatewayd_engine import embedded


def config(folder: Path, **quantizer: Any) -> Config:
    return Config.model_validate({"model": {"path": str(folder)}, "quantizer": quantizer})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(embedded.folder(), tmp_path / "model"))


def announce(model: Path, announced: Any) -> None:
    values = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(values | {"quantization_config": announced}))


def test_what_is_whole_is_counted(model: Path) -> None:
    found = weights(config(model))
    assert (found.state, found.subject) == ("ok", "weights")
    assert found.text == "2 file(s), 0.0 GiB, 56 tensors"


def test_a_file_that_was_not_downloaded_to_its_end_is_named(model: Path) -> None:
    path = max(model.glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-7])
    found = weights(config(model))
    assert found.state == "failure"
    assert found.text.startswith(f"{path} is not a whole safetensors file: it ends 7 bytes before")
    path.unlink()
    assert weights(config(model)).text.startswith(f"{path} does not exist, but model.safetensors.")


@pytest.mark.parametrize(
    ("announced", "quantizer", "sentence"),
    [
        ({"quant_method": "bitsandbytes"}, {}, "'bitsandbytes', and no installed quantizer has"),
        ({"quant_method": "awq"}, {"strategy": "none"}, "[quantizer] strategy is none; set it to"),
        ({"quant_method": "awq"}, {"strategy": "int8"}, "[quantizer] strategy is int8; set it to"),
        ({}, {}, "quant_method is 'None', and no installed"),
        (3, {}, "quantization_config must be an object"),
    ],
)
def test_formats_that_cannot_be_read_are_named(
    announced: Any, quantizer: dict[str, str], sentence: str, model: Path
) -> None:
    announce(model, announced)
    found = weights(config(model, **quantizer))
    assert found.state == "failure"
    assert sentence in found.text


def test_formats_that_are_installed_are_said(model: Path) -> None:
    announce(model, {"quant_method": "compressed-tensors"})
    assert weights(config(model)).text.endswith(", quantized: compressed-tensors")


def test_floats_take_what_is_computed_with_and_not_what_the_files_do(model: Path) -> None:
    parameters = 11_015_040
    plain, file = config(model), sum(f.stat().st_size for f in model.glob("*.safetensors"))
    assert expected_bytes(plain, "cpu") == 4 * parameters
    assert expected_bytes(plain, "cuda") == 2 * parameters
    assert expected_bytes(config(model, strategy="int8"), "cpu") == file
    announce(model, {"quant_method": "awq"})
    assert expected_bytes(plain, "cpu") == file
