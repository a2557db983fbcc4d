"""Latent attention (MLA) on a device: tokens are those of transformers, steps are captured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gatewayd_engine.attention.paged import PagedAttention
from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.runner.gpu import warmup
from gatewayd_engine.runner.gpu.cuda_graphs import Capture, LaunchEach
from tests.engine.core.golden import golden_model
from tests.engine.core.models.test_tokens import compare
from tests.engine.runner.gpu.conftest import mixed_prompts
from tests.engine.runner.gpu.strict_capture import RecordedWhole, beside
from tests.gpu.engines import follow, greedy

Make = Callable[..., Any]
own = pytest.mark.parametrize("make_device_engine", ["own"], indirect=True)
FAMILIES = (
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v3_biases",
    "deepseek_v3_direct",
    "glm4_moe_lite",
    "youtu",
)


@pytest.fixture
def capture(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Capture:
    """Of few sizes, and everything is noted but for what stand-ins compute on the host."""
    if "architecture" not in request.node.callspec.params:
        return LaunchEach()
    for name in ("gather", "sample"):
        beside(monkeypatch, TorchKernels, name)
    monkeypatch.setattr(warmup, "token_counts", lambda most: [8, 24, 48])
    monkeypatch.setattr(warmup, "sizes", lambda max_lines: [1, 2, 4, 8])
    return RecordedWhole()


@own
@pytest.mark.parametrize("architecture", FAMILIES)
def test_tokens_equal_transformers(
    architecture: str,
    checkpoint: Callable[[str], Path],
    make_device_engine: Make,
    capture: RecordedWhole,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chunks: list[int] = []
    real = TorchKernels.prompt_attention

    def noted(*args: Any, most_queries: int, **named: Any) -> None:
        chunks.append(most_queries)
        real(*args, most_queries=most_queries, **named)

    monkeypatch.setattr(TorchKernels, "prompt_attention", staticmethod(noted))
    engine = make_device_engine(
        checkpoint(architecture), page_size=2, kv_pages=180, max_batch_tokens=64, max_running=8
    )
    assert "model_backend" not in engine.info.strategies
    capture.replays.clear()
    chunks.clear()
    golden = golden_model(checkpoint(architecture))
    compare(engine, golden, mixed_prompts(12, 320, 120, 1), 10, must_preempt=None)
    # Whole decode steps; and steps with prompts by pieces, whose chunks have their own kernel.
    assert capture.replays.count(1) > 10
    assert max(capture.replays) > 1
    assert max(chunks) > 8


@own
@pytest.mark.parametrize("drafter", ["ngram", "draft_model"])
def test_drafts_change_no_token(
    drafter: str, checkpoint: Callable[[str], Path], make_device_engine: Make
) -> None:
    folder = checkpoint("deepseek_v3")
    settings = {} if drafter == "ngram" else {"model": str(folder), "min_confidence": 0.0}
    engine = make_device_engine(
        folder,
        drafter=StrategyChoice(drafter, settings),
        spec_controller=StrategyChoice("fixed", {"drafts": 3}),
        max_running=4,
        max_model_len=256,
    )
    prompts = [[3, 4, 5, 6] * 8, list(range(20, 80))]
    ids = [engine.submit(prompt, max_tokens=24, ignore_eos=True)[0] for prompt in prompts]
    answers = engine.run()
    for prompt, number in zip(prompts, ids, strict=True):
        assert answers[number].tokens == golden_model(folder).continued(prompt, 24, ())
    assert engine.core.stats.draft_tokens > 0
    if drafter == "draft_model":
        assert engine.core.stats.accepted_tokens > 24


@own
def test_a_shared_beginning_changes_no_token(
    checkpoint: Callable[[str], Path],
    make_device_engine: Make,
    few_pages: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = checkpoint("deepseek_v2")
    engine = make_device_engine(folder, cascade_attention=True, max_running=4)
    times: list[int] = []
    attend = TorchKernels.decode_attention

    def noted(*args: Any, shared: Any = None, **named: Any) -> None:
        times.append(0 if shared is None else int(shared.num_pages))
        attend(*args, shared=shared, **named)

    monkeypatch.setattr(TorchKernels, "decode_attention", staticmethod(noted))
    begin = [5 + i % 90 for i in range(150)]
    prompts = [[*begin, 7 + i] for i in range(4)]
    engine.generate(prompts[0], max_tokens=1)
    ids = [engine.submit(prompt, max_tokens=8, ignore_eos=True)[0] for prompt in prompts]
    answers = engine.run()
    for prompt, number in zip(prompts, ids, strict=True):
        assert answers[number].tokens == golden_model(folder).continued(prompt, 8, ())
    assert max(times) > 4


@pytest.mark.parametrize("make_device_engine", ["paged"], indirect=True)
def test_without_kernels_torch_attends_to_latents(
    checkpoint: Callable[[str], Path],
    make_device_engine: Make,
    device_runner: Callable[[Any], Any],
) -> None:
    folder = checkpoint("deepseek_v3")
    engine = make_device_engine(folder, page_size=2, kv_pages=180, max_batch_tokens=64)
    attention = device_runner(engine)._attention
    assert isinstance(attention, PagedAttention)
    assert attention._kernels is None
    prompts = mixed_prompts(8, 320, 120, 3)
    compare(engine, golden_model(folder), prompts, 10, must_preempt=None)


@own
def test_pages_of_8_bits_hold_latents(
    checkpoint: Callable[[str], Path],
    make_engine: Make,
    make_device_engine: Make,
    device_runner: Callable[[Any], Any],
) -> None:
    folder, codec = checkpoint("deepseek_v3"), StrategyChoice("fp8", {"scale": "none"})
    engine = make_device_engine(folder, kv_codec=codec, max_running=4)
    pool = device_runner(engine)._drafted._slots.pool
    assert (pool.data.dtype, pool.data.shape[2]) == (torch.float8_e4m3fn, 1)
    prompts = mixed_prompts(5, 320, 90, 3)
    reference = greedy(make_engine(folder, kv_codec=codec), prompts, 8)
    # How far apart two logits may be and still change places: a number may be between two codes.
    assert len(follow(engine, prompts, reference, 0.5)) <= 3


@own
def test_projections_of_4_bits_answer_as_on_a_cpu(
    checkpoint: Callable[[str], Path], make_engine: Make, make_device_engine: Make
) -> None:
    fields = {"quantizer": StrategyChoice("int4", {"group_size": 32}), "max_running": 4}
    folder = checkpoint("deepseek_v3")
    engine, prompts = make_device_engine(folder, **fields), mixed_prompts(5, 320, 90, 3)
    reference = greedy(make_engine(folder, cpu_activations="float", **fields), prompts, 8)
    assert len(follow(engine, prompts, reference, 0.5)) <= 4


@own
def test_a_first_matrix_that_reads_codes_gets_them(
    checkpoint: Callable[[str], Path], make_device_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other than on a CPU, so tokens are compared with those of floats, and a few may differ."""
    folder, widths = checkpoint("deepseek_v3"), set()
    real = TorchKernels.add_rms_norm_quant

    def noted(self: Any, x: torch.Tensor, *rest: Any) -> Any:
        widths.add(x.shape[1])
        return real(self, x, *rest)

    monkeypatch.setattr(TorchKernels, "add_rms_norm_quant", noted)
    engine = make_device_engine(folder, quantizer=StrategyChoice("int8"), max_running=4)
    prompts = mixed_prompts(6, 320, 90, 3)
    found = [engine.generate(prompt, max_tokens=1, ignore_eos=True) for prompt in prompts]
    wanted = [golden_model(folder).continued(prompt, 1, ()) for prompt in prompts]
    assert sum(one == other for one, other in zip(found, wanted, strict=True)) >= 4
    assert engine.core._runner._decoder.spec.hidden_size in widths
