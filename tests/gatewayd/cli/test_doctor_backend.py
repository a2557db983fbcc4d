"""``gatewayd doctor MODEL``: which backend would serve a model, and how much memory it takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gatewayd.cli import app
from gatewayd.cli.doctor.backend import backend
from gatewayd.cli.doctor.weights import weights
from gatewayd.config.tables import Config
from tests.engine.core.models.tiny_families import write_tiny


def of(folder: Path | None, **model: str) -> Config:
    path = {} if folder is None else {"path": str(folder)}
    return Config.model_validate({"model": {**path, **model}, "engine": {"device": "cpu"}})


def test_the_embedded_model_is_native() -> None:
    found = backend(of(None))
    assert found.state == "ok"
    assert found.text.startswith("native serves LlamaForCausalLM in float32: ")


def test_another_architecture_goes_to_the_library(tmp_path: Path) -> None:
    count = write_tiny(tmp_path, "gpt2")
    found = backend(of(tmp_path, dtype="bfloat16"))
    assert found.state == "ok"
    # Four layers, four heads of 16 numbers, keys and values, two bytes.
    assert found.text.startswith(
        f"transformers serves GPT2LMHeadModel in bfloat16: {count:,} parameters, "
    )
    assert "1 KiB of KV cache a token, 512 KiB for a context of 512" in found.text
    assert weights(of(tmp_path)).state == "ok"
    assert weights(of(tmp_path, backend="native")).state == "failure"


def test_a_model_that_is_refused_names_the_reason(tmp_path: Path) -> None:
    write_tiny(tmp_path, "mamba")
    found = backend(of(tmp_path))
    assert found.state == "failure"
    assert "its layers have a recurrent state" in found.text


@pytest.mark.parametrize("name", ["bad.gguf", f"{'x' * 300}.gguf"])
def test_a_gguf_file_that_cannot_be_read_is_a_finding(name: str, tmp_path: Path) -> None:
    if len(name) < 255:
        (tmp_path / name).write_bytes(b"no GGUF file")
    done = CliRunner().invoke(app, ["doctor", str(tmp_path / name), "--json"])
    assert done.exit_code == 1
    checks = {check["subject"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["backend"]["state"] == "failure"
    assert name in checks["backend"]["text"]
    assert checks["model"]["text"] == checks["backend"]["text"]


def test_the_folder_is_an_argument_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "none_such"}))
    done = CliRunner().invoke(app, ["doctor", str(tmp_path), "--json"])
    assert done.exit_code == 1
    checks = {check["subject"]: check for check in json.loads(done.stdout)["checks"]}
    assert "none_such" in checks["backend"]["text"]
