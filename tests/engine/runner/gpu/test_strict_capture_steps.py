"""Strict capture of steps in all formats: replays equal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.runner.gpu import warmup
from tests.engine.core.prompts import PROMPTS
from tests.engine.runner.gpu.strict_capture import RecordedWhole, beside

Make = Callable[..., Any]
FIELDS: dict[str, Any] = {"max_running": 4, "max_model_len": 128, "page_size": 8, "kv_pages": 64}
own = pytest.mark.parametrize("make_device_engine", ["own"], indirect=True)


@pytest.fixture
def capture(monkeypatch: pytest.MonkeyPatch, flashinfer: SimpleNamespace) -> RecordedWhole:
    """Everything is noted but for what stand-ins compute on the host; few sizes are captured."""
    beside(monkeypatch, flashinfer.flash._Step, "attended")
    beside(monkeypatch, TorchKernels, "slots")
    monkeypatch.setattr(warmup, "token_counts", lambda most: [16])
    monkeypatch.setattr(warmup, "sizes", lambda max_lines: [1, 4])
    return RecordedWhole()


def said(make: Make, folder: Path | None, **fields: Any) -> list[tuple[list[int], list[Any]]]:
    """Tokens, some of them drawn, and log-probabilities, of prompts that begin one by one."""
    engine = make(folder, **FIELDS, **fields)
    ids = []
    for i, prompt in enumerate(PROMPTS[:3]):
        asked: dict[str, Any] = {"temperature": 0.8 * (i % 2), "seed": i, "ignore_eos": True}
        ids += engine.submit(prompt[: 6 + i], max_tokens=4 + 3 * i, **asked)[:1]
        engine.step()
    ids += engine.submit(PROMPTS[3][:9], max_tokens=4, logprobs=2, frequency_penalty=0.5)
    done = engine.run()
    assert all(done[i].finished.error is None for i in ids)
    return [(done[i].tokens, done[i].logprobs) for i in ids]


def compare(make: Make, capture: RecordedWhole, folder: Path | None = None, **fields: Any) -> None:
    """Steps that are replayed say what those that are launched kernel by kernel do."""
    launched = said(make, folder, capture="off", **fields)
    before = len(capture.replays)
    replayed = said(make, folder, **fields)
    for (tokens, reports), (wanted, others) in zip(replayed, launched, strict=True):
        assert tokens == wanted
        for ours, theirs in zip(reports, others, strict=True):
            assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
    replays = capture.replays[before:]
    # Decode steps whole, and steps with prompts in pieces.
    assert replays.count(1) > 5
    assert max(replays) > 1


@pytest.mark.parametrize("make_device_engine", ["captured"], indirect=True)
def test_models_with_windows_and_caps(
    checkpoint: Callable[[str], Path], make_device_engine: Make, capture: RecordedWhole
) -> None:
    compare(make_device_engine, capture, checkpoint("gemma2"))


@own
@pytest.mark.usefixtures("small_model")
@pytest.mark.parametrize(
    "fields",
    [
        {"quantizer": StrategyChoice("int8")},
        {"quantizer": StrategyChoice("int4", {"group_size": 32})},
        {"kv_codec": StrategyChoice("fp8", {"scale": "none"})},
    ],
    ids=["int8", "int4", "fp8 of keys and values"],
)
def test_formats(fields: dict[str, Any], make_device_engine: Make, capture: RecordedWhole) -> None:
    compare(make_device_engine, capture, **fields)


@own
@pytest.mark.usefixtures("small_model")
def test_a_tensor_that_the_runner_makes_anew_fails_its_replays(
    make_device_engine: Make, device_runner: Callable[[Any], Any], capture: RecordedWhole
) -> None:
    runner = device_runner(make_device_engine(**FIELDS))
    (step,) = runner._graphs[4]
    with torch.inference_mode():
        step.whole()
        runner.logits = torch.empty_like(runner.logits)
        with pytest.raises(RuntimeError, match="captured with memory that is freed"):
            step.whole()
