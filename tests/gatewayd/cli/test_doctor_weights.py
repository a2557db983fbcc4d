"""Doctor on weights: reports before a start what an engine would refuse."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from gatewayd.cli.doctor import checks, service
from gatewayd.cli.doctor.weights import weights
from gatewayd.config.tables import Config
from gatewayd.engines.replicas.weight_bytes import expected_bytes
from gatewayd_engine.model import embedded
from gatewayd_engine.model.spec import read_spec
from gatewayd_engine.process.config import StrategyChoice
from tests.engine.core.conftest import build
from tests.engine.core.models.test_gguf import OURS
from tests.engine.core.small_model import small
from tests.engine.gguf_files import convert


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


def test_codes_that_are_made_floats_take_what_floats_do(model: Path) -> None:
    file = sum(f.stat().st_size for f in model.glob("*.safetensors"))
    floats, packed = 4 * 11_015_040, {"fp8": {"packed": True}}
    assert expected_bytes(config(model, strategy="fp8"), "cpu") == floats
    assert expected_bytes(config(model, strategy="sparse24"), "cpu") == floats
    announce(model, {"quant_method": "fp8"})
    assert expected_bytes(config(model), "cpu") == floats
    assert expected_bytes(config(model, **packed), "cpu") == file
    assert expected_bytes(config(model), "cuda") == file


def test_types_of_a_gguf_file_are_said(tmp_path: Path) -> None:
    convert(small(), tmp_path, "llama", ["Q8_0", "Q4_0"])
    assert weights(config(tmp_path)).text.endswith(", quantized: gguf (Q4_0, Q8_0)")
    convert(small(), tmp_path, "llama", ["F32"])
    assert weights(config(tmp_path)).text.endswith(", quantized: gguf (floats)")


@pytest.mark.parametrize(("settings", "bytes_per_number"), [({}, 9 / 8), ({"packed": False}, 4)])
def test_of_a_gguf_file_it_is_what_an_engine_takes(
    settings: dict[str, bool], bytes_per_number: float, tmp_path: Path
) -> None:
    convert(small(), tmp_path, "llama", ["Q4_0"])
    tables = {"gguf": settings}
    info = build(tmp_path, OURS, quantizer=StrategyChoice("auto", tables)).info
    spec = read_spec(tmp_path)
    # A table that is the head, too, is there twice on a CPU.
    table = bytes_per_number * spec.vocab_size * spec.hidden_size
    taken = info.weight_bytes - table
    expected = expected_bytes(config(tmp_path, **tables), "cpu")
    assert expected == pytest.approx(taken, rel=0.1)


def test_a_gguf_file_that_cannot_be_served_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    given = config(tmp_path / "model.gguf")
    sentence = f"{tmp_path}/model.gguf is not a whole GGUF file: the version takes 4 bytes, of 4"
    for check in (weights, checks.model, service.confinement):
        found = check(given)
        assert found.state == "failure"
        assert sentence in found.text
    assert expected_bytes(given, "cpu") == 0
