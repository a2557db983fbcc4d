"""Quantizing the language model of a multimodal checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gatewayd_engine.model.spec import read_spec
from gatewayd_engine.offline.quantize.job import CheckpointWritten
from tests.engine.model.test_text_part import gemma3, written
from tests.engine.offline.quantize.jobs import job, told


def test_of_a_multimodal_model_the_language_model_is_written(tmp_path: Path) -> None:
    source, out = written(gemma3(), tmp_path / "source"), tmp_path / "out"
    ended = told(job(out, "fp8", [], model=str(source)))[-1]
    assert isinstance(ended, CheckpointWritten)
    spec = read_spec(out)
    assert spec.architecture == "Gemma3ForCausalLM"
    assert not spec.is_text_part
    assert replace(spec, quantization=None, is_text_part=True) == read_spec(source)
