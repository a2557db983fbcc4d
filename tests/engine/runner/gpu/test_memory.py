"""Memory budget: what is left for pages; the measured step is the largest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.model.attention_shape import AttentionShape
from gatewayd_engine.model.config.moe import MoeSpec, Routing, SharedExpert
from gatewayd_engine.model.loading.loader import load
from gatewayd_engine.model.parts import FusedParts
from gatewayd_engine.model.spec import read_spec
from gatewayd_engine.process.config import EngineConfig, EngineConfigError, StrategyChoice
from gatewayd_engine.runner.backend import DeviceBackend
from gatewayd_engine.runner.gpu import memory, widths
from gatewayd_engine.runner.gpu.cuda_graphs import LaunchEach
from gatewayd_engine.runner.gpu.memory import (
    DoesNotFit,
    MemoryUsage,
    bytes_after_profiling,
    kv_cache_bytes,
    log_free,
    run_largest,
)
from gatewayd_engine.runner.gpu.warmup import _drafted_batch
from gatewayd_engine.runner.gpu.widths import WIDTHS, captured_sizes
from tests.engine.core.fake_drafters import Guess, guess_with
from tests.engine.core.prompts import PROMPTS
from tests.random_cases import few_of

GIB = 1 << 30
LATER = 3 << 28


def test_pages_get_what_the_rest_leaves() -> None:
    usage = MemoryUsage(
        total=100 * GIB, others=2 * GIB, weights=15 * GIB, peak=3 * GIB, later=LATER
    )
    assert kv_cache_bytes(usage, 0.9) == int(100 * GIB * 0.9) - 18 * GIB - LATER
    assert kv_cache_bytes(usage, 0.5) == 32 * GIB - LATER
    # What others have cannot be given away.
    assert kv_cache_bytes(usage, 1.0) == 80 * GIB - LATER
    crowded = MemoryUsage(
        total=100 * GIB, others=60 * GIB, weights=15 * GIB, peak=3 * GIB, later=LATER
    )
    assert kv_cache_bytes(crowded, 0.9) == 22 * GIB - LATER


def test_the_last_byte_counts() -> None:
    usage = MemoryUsage(total=10 * GIB, others=0, weights=5 * GIB, peak=3 * GIB - 1, later=2 * GIB)
    assert kv_cache_bytes(usage, 1.0) == 1
    with pytest.raises(DoesNotFit):
        kv_cache_bytes(MemoryUsage(10 * GIB, 0, 5 * GIB, 3 * GIB, 2 * GIB), 1.0)


def test_what_does_not_fit_is_said_with_every_size() -> None:
    usage = MemoryUsage(total=24 * GIB, others=GIB // 2, weights=15 * GIB, peak=7 * GIB, later=GIB)
    with pytest.raises(DoesNotFit) as raised:
        kv_cache_bytes(usage, 0.85)
    assert str(raised.value) == (
        "the model does not fit: weights take 15.0 GiB, activations of a step 7.0 GiB, workspaces"
        " and CUDA graphs 1.0 GiB; gpu_memory_utilization 0.85 allows 20.4 GiB of 24.0 GiB, of"
        " which 0.5 GiB are in use elsewhere. Lower max_batch_tokens or max_running, raise"
        " gpu_memory_utilization, or use a smaller model"
    )


@pytest.mark.parametrize(("tokens", "lines"), [(40, 6), (3, 8)])
def test_the_largest_step_can_be_run(
    architecture: str, checkpoint: Callable[[str], Path], tokens: int, lines: int
) -> None:
    folder = checkpoint(architecture)
    spec = read_spec(folder)
    if spec.latent is not None:
        pytest.skip("latent attention has no kernels for GPUs")
    sampled: list[torch.Size] = []

    class Noted(TorchKernels):
        def sample(self, logits: torch.Tensor, *rest: Any) -> Any:
            sampled.append(logits.shape)
            return super().sample(logits, *rest)

    kernels = Noted()
    decoder = load(folder, spec, torch.float32, "cpu", lambda part: None, FusedParts(kernels))
    with torch.inference_mode():
        run_largest(decoder, kernels, tokens, lines)
    assert sampled == [(min(tokens, lines), spec.vocab_size)]


@pytest.mark.parametrize("name", ["llama4_chunks", "deepseek_v3"])
def test_steps_rotate_by_the_tables_that_were_measured(
    checkpoint: Callable[[str], Path], name: str
) -> None:
    """Of two million positions a table takes a gibibyte; the budget of pages knows of one alone."""
    folder = checkpoint(name)
    spec = read_spec(folder)
    decoder = load(folder, spec, torch.float32, "cpu", lambda part: None)
    tables, again = decoder.rotation_tables(), decoder.rotation_tables()
    assert len(tables) == spec.num_layers
    for table, other, rotary in zip(tables, again, decoder.rotaries, strict=True):
        assert table.shape == (spec.max_model_len, spec.rope.rotary_dim)
        assert table.data_ptr() == other.data_ptr() == rotary.table().data_ptr()
        rows = spec.max_model_len if rotary.is_rotating else 1
        assert table.untyped_storage().nbytes() == rows * spec.rope.rotary_dim * 4


class Counted:
    """What a decoder computes.

    Attributes:
        hidden: most tokens of a step, padding too.
        logits: most rows of logits.
    """

    def __init__(self, decoder: Any, patch: pytest.MonkeyPatch) -> None:
        self.hidden = self.logits = 0
        hidden, logits = decoder.hidden, decoder.raw_logits

        def noted_hidden(ids: torch.Tensor, *rest: Any) -> Any:
            self.hidden = max(self.hidden, len(ids))
            return hidden(ids, *rest)

        def noted_logits(states: torch.Tensor, **named: Any) -> Any:
            self.logits = max(self.logits, len(states))
            return logits(states, **named)

        patch.setattr(decoder, "hidden", noted_hidden)
        patch.setattr(decoder, "raw_logits", noted_logits)

    def taken(self) -> tuple[int, int]:
        """Both, from now on anew."""
        found = self.hidden, self.logits
        self.hidden = self.logits = 0
        return found


@pytest.mark.usefixtures("small_model")
@pytest.mark.parametrize("make_device_engine", ["captured"], indirect=True)
@pytest.mark.parametrize(("slots", "tokens"), few_of([(10, 40), (64, 9), (24, 40), (64, 48)], 2))
def test_the_largest_step_with_drafts_is_the_one_that_is_measured(
    make_device_engine: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    slots: int,
    tokens: int,
) -> None:
    """Held against all steps that there may be, and against those that there are."""
    monkeypatch.setattr(widths, "MOST_CAPTURED", slots)
    lines = 5
    engine = make_device_engine(
        max_running=lines,
        max_batch_tokens=tokens,
        capture="off",
        drafter=StrategyChoice("ngram"),
        spec_controller=StrategyChoice("fixed", {"drafts": 63}),
    )
    runner = engine.core._runner
    counted = Counted(runner._decoder, monkeypatch)
    with torch.inference_mode():
        run_largest(runner._decoder, TorchKernels(), tokens, lines, has_drafts=True)
    hidden, logits = counted.taken()
    for drafted in range(1, lines + 1):
        for most in range(1, runner.most_drafts(drafted) + 1):
            for few in {1, most}:
                counts = [most + 1] + [few + 1] * (drafted - 1)
                left = tokens - sum(counts)
                others = min(lines - drafted, left)
                if left < 0:
                    continue
                if others:
                    # All that is left is one prompt's, and lines beside it decode.
                    counts += [left - others + 1] + [1] * (others - 1)
                runner.launch(_drafted_batch(counts, drafted)).result()
    largest = counted.taken()
    assert largest[0] == hidden
    assert largest[1] <= logits
    if slots == 2 * lines:
        # Each line with a draft.
        assert largest[1] == logits == slots
    guess_with(engine, Guess([], 0.0, "tree"))
    for prompt in PROMPTS:
        engine.submit(prompt, max_tokens=40, ignore_eos=True)
    engine.run()
    assert engine.core.stats.draft_tokens > 20
    real = counted.taken()
    assert real[0] <= hidden
    assert lines < real[1] <= logits


def backend(**fields: Any) -> DeviceBackend:
    """On a device whose memory is not looked at."""
    some = StrategyChoice("none")
    config = EngineConfig("", some, None, some, some, device="cuda", **fields)
    return DeviceBackend(config, TorchKernels(), LaunchEach(), lambda stage, part: None)


def test_the_device_is_measured_only_where_no_size_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def measure(*args: Any, captures: bool, has_drafts: bool) -> MemoryUsage:
        asked.append(args)
        return MemoryUsage(total=80 * GIB, others=0, weights=16 * GIB, peak=GIB, later=LATER)

    monkeypatch.setattr(memory, "measure", measure)
    model: Any = object()
    assert backend(kv_bytes=123).kv_bytes(lambda: model) == 123
    assert asked == []
    given = backend(gpu_memory_utilization=0.5, max_batch_tokens=33, max_running=44)
    assert given.kv_bytes(lambda: model) == 23 * GIB - LATER
    assert [args[0] for args in asked] == [model]
    assert asked[0][2:] == (33, 44)
    with pytest.raises(
        EngineConfigError, match=r"gpu_memory_utilization 0\.1 allows 8\.0 GiB of 80\.0"
    ):
        backend(gpu_memory_utilization=0.1).kv_bytes(lambda: model)


def spec_of(**fields: Any) -> Any:
    """As of Llama 3.1 8B."""
    given: dict[str, Any] = {
        "num_layers": 32,
        "num_heads": 32,
        "num_kv_heads": 8,
        "head_dim": 128,
        "hidden_size": 4096,
        "vocab_size": 128_256,
        "windows": (0,) * 32,
        "moe": None,
        **fields,
    }
    given["attention"] = AttentionShape(32, 32, 8, 128, 128**-0.5, None, given["windows"])
    return SimpleNamespace(**given)


def decoder_of(spec: Any, *, is_capturable: bool = True) -> Any:
    """In bfloat16, but for capped logits."""
    bf16 = torch.bfloat16
    return SimpleNamespace(
        spec=spec,
        num_parameters=8_030_261_248,
        weight_bytes=2 * 8_030_261_248,
        dtype=bf16,
        logits_dtype=bf16,
        device="cuda",
        is_capturable=is_capturable,
    )


def test_what_is_made_later_follows_from_the_sizes() -> None:
    later = bytes_after_profiling(decoder_of(spec_of()), 8192, 256, captures=True)
    logits, attention = 256 * 128_256 * 2, (384 + 8 * 8) << 20
    # With what cuBLASLt works in.
    rest = (256 + 32) << 20
    # 512 tokens: queries, keys and values; what is attended; what the layers leave.
    rooms = 512 * (48 * 128 + 32 * 128 + 4096) * 2
    # Eight numbers of tokens by 33 pieces; 1, 2, 4, every 8th to 256, each with and without tokens.
    # Such a step with three kinds of attention at most.
    graphs = (8 * 33 + 2 * 3 * (3 + 32)) * (512 << 10)
    assert later == logits + attention + rest + rooms + graphs
    # Of more lines only logits and decode steps.
    more = bytes_after_profiling(decoder_of(spec_of()), 8192, 512, captures=True)
    assert more - later == logits + 2 * 3 * 16 * (512 << 10)
    two = bytes_after_profiling(
        decoder_of(spec_of(windows=(0, 4096) * 16)), 8192, 256, captures=True
    )
    assert two - later == 32 << 20
    # 512 slots of logits and of two states of 4,096 numbers each, and 44 graphs. Of the drafter
    # 256 rows of logits, as numbers of four bytes, and as shares; 9 graphs, or 18 of a small model.
    heads = 256 * 128_256 * (2 + 4 + 4) + 18 * (512 << 10)
    drafted = bytes_after_profiling(
        decoder_of(spec_of()), 8192, 256, captures=True, has_drafts=True
    )
    assert drafted - later == 512 * 2 * (128_256 + 2 * 4096) + 44 * (512 << 10) + heads
    # A small model has logits of all lines.
    most = bytes_after_profiling(decoder_of(spec_of()), 8192, 2048, captures=True, has_drafts=True)
    least = bytes_after_profiling(decoder_of(spec_of()), 8192, 2048, captures=True)
    graphs = sum(len(captured_sizes(width, 2048)) for width in WIDTHS) + 2 * 12
    kept = 512 * 2 * (128_256 + 2 * 4096)
    assert most - least == kept + graphs * (512 << 10) + 2048 * 128_256 * 2
    decoder = decoder_of(spec_of(), is_capturable=False)
    assert bytes_after_profiling(decoder, 8192, 256, captures=True) == logits + attention + rest
    launched = bytes_after_profiling(decoder_of(spec_of()), 8192, 256, captures=False)
    assert launched == logits + attention + rest


def test_visits_of_captured_steps_have_room() -> None:
    # As many tokens as the largest mixed step that is captured, or as sequences.
    layers, plain = (True,) * 16 + (False,) * 16, decoder_of(spec_of())
    one = 512 * 2 * (2 * 3584 + 4096) * 2
    shared = SharedExpert("shared_experts", 1408)
    for routing, part, more in (
        (Routing(2), None, 0),
        (Routing(2), shared, 512 * (3 * 1408 + 4096) * 2),
        (Routing(2, weighs_inputs=True), None, 512 * 2 * 4096 * 2),
    ):
        moe = MoeSpec(8, 3584, layers, routing, part)
        decoder = decoder_of(spec_of(moe=moe))
        for lines, times in ((256, 1), (1024, 2)):
            with_, without = (
                bytes_after_profiling(d, 8192, lines, captures=True) for d in (decoder, plain)
            )
            assert with_ - without == times * (one + more)


def test_what_is_free_in_the_end_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (9 * GIB, 80 * GIB))
    with caplog.at_level("INFO"):
        log_free(torch.device("cuda"), 0.9)
    assert caplog.messages == [
        "start-up complete: 9.0 GiB of the device's 80.0 GiB are free; gpu_memory_utilization 0.9"
        " leaves 8.0 GiB"
    ]
