"""Pruned checkpoints: floats with zeros that any reader takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from gatewayd_engine.model import embedded
from gatewayd_engine.offline.quantize.job import CheckpointWritten, QuantizeJob, QuantizeStarted
from gatewayd_engine.offline.quantize.run import quantize
from gatewayd_engine.offline.quantize.texts import bundled
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_quant_sparse24.strategy import Sparse24
from tests.engine.core.conftest import build
from tests.engine.core.small_model import NUM_LAYERS, small
from tests.engine.offline.quantize.jobs import HOST, job, reason, stopped, told

PROMPT = [5, 9, 31, 7, 7, 60, 2]


@pytest.fixture(scope="module")
def samples() -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(embedded.folder() / "tokenizer.json"))
    return [tokenizer.encode(text.text).ids[:128] for text in bundled()[:4]]


def thin(tensor: torch.Tensor) -> bool:
    return bool((torch.unflatten(tensor != 0, 1, (-1, 4)).sum(-1) <= 2).all())


def test_what_is_written_is_floats_of_which_half_are_zeros(
    samples: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    written = told(job(out, "sparse24", samples, skip=["*.o_proj"]))[-1]
    assert isinstance(written, CheckpointWritten), written
    assert len(written.matrices) == 6 * NUM_LAYERS
    lost, nearest = (sum(getattr(m, k) for m in written.matrices) for k in ("lost", "nearest"))
    assert 0 < lost < 0.7 * nearest
    config = json.loads((out / "config.json").read_text())
    assert config == json.loads((small() / "config.json").read_text())
    source, made = load_file(small() / "model.safetensors"), load_file(out / "model.safetensors")
    assert {n: (t.dtype, t.shape) for n, t in made.items()} == {
        n: (t.dtype, t.shape) for n, t in source.items()
    }
    packed = {f"{one.matrix}.weight" for one in written.matrices}
    assert {name for name in made if made[name].dim() == 2 and thin(made[name])} == packed
    assert all(torch.equal(made[name], source[name]) for name in made.keys() - packed)
    # What two that read it make of it: the one with the quantizer, which leaves it as it is.
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    thinned: list[bool] = []
    quantized = Sparse24.quantize

    def noting(self: Sparse24, matrix: object, weight: torch.Tensor) -> object:
        result = quantized(self, matrix, weight)  # type: ignore[arg-type]
        thinned.append(result is not None and torch.equal(result.values, weight))
        return result

    monkeypatch.setattr(Sparse24, "quantize", noting)
    for choice in (None, StrategyChoice("sparse24")):
        harness = build(out, quantizer=choice, quantizer_skip=["*.o_proj"])
        tokens = harness.generate(PROMPT, max_tokens=8, ignore_eos=True)
        harness.core.strategies.close()
        with torch.inference_mode():
            logits = model(torch.tensor([PROMPT + tokens])).logits[0]
        assert tokens == logits[len(PROMPT) - 1 : -1].argmax(-1).tolist()
    assert thinned.count(True) == 3 * NUM_LAYERS, "joined matrices of layers"


def test_it_goes_on_to_the_same_bytes(samples: list[list[int]], tmp_path: Path) -> None:
    assert isinstance(told(job(tmp_path / "whole", "sparse24", samples))[-1], CheckpointWritten)
    one = job(tmp_path / "parts", "sparse24", samples)
    with pytest.raises(RuntimeError):
        quantize(one, HOST, stopped)
    events = told(job(tmp_path / "parts", "sparse24", samples, resume=True))
    assert events[0] == QuantizeStarted(1, NUM_LAYERS)
    for path in (tmp_path / "whole").iterdir():
        assert path.read_bytes() == (tmp_path / "parts" / path.name).read_bytes()


def test_without_texts_the_largest_stay(tmp_path: Path) -> None:
    written = told(job(tmp_path / "out", "sparse24", []))[-1]
    assert isinstance(written, CheckpointWritten)
    assert all(one.lost == one.nearest > 0 for one in written.matrices)
    assert "writes no checkpoints" in reason(
        QuantizeJob(str(small()), str(tmp_path / "other"), StrategyChoice("int4"), [])
    )
