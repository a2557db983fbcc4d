"""Piecewise graphs: prefill steps captured between attention, results and coverage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.model.attention_api import RotatingAttend
from gatewayd_engine.model.decoder import Decoder
from gatewayd_engine.model.loading.loader import load
from gatewayd_engine.model.parts import FusedParts
from gatewayd_engine.model.spec import read_spec
from gatewayd_engine.runner.gpu import warmup
from gatewayd_engine.runner.gpu.launch_bound import launch_bound
from gatewayd_engine.runner.gpu.piecewise_graphs import PiecewiseGraphs, token_counts
from tests.engine.core.golden import golden_model
from tests.engine.core.models.test_tokens import compare
from tests.engine.core.prompts import PROMPTS, answers
from tests.engine.runner.gpu.conftest import mixed_prompts
from tests.engine.runner.gpu.strict_capture import Recorded

pytestmark = pytest.mark.usefixtures("small_model")

Make = Callable[..., Any]
Plan = Callable[[], RotatingAttend]
captured = pytest.mark.parametrize("make_device_engine", ["captured"], indirect=True)


@pytest.fixture
def capture() -> Recorded:
    """In place of the one that launches each time."""
    return Recorded()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few numbers of tokens, of which the largest is soon exceeded."""
    monkeypatch.setattr(warmup, "token_counts", lambda most: [8, 24, 48])


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What steps are padded to, and how many tokens they have."""
    seen: list[tuple[int, int]] = []
    hidden = PiecewiseGraphs.hidden

    def noted(self: PiecewiseGraphs, size: int, num_tokens: int, plan: Plan) -> torch.Tensor:
        seen.append((size, num_tokens))
        return hidden(self, size, num_tokens, plan)

    monkeypatch.setattr(PiecewiseGraphs, "hidden", noted)
    return seen


@given(st.integers(1, 9000))
def test_numbers_of_tokens_end_with_the_largest_step(max_tokens: int) -> None:
    counts = token_counts(max_tokens)
    assert counts == sorted(set(counts))
    assert (counts[0], counts[-1]) == (min(max_tokens, 16), min(max_tokens, 512))


@pytest.mark.parametrize(
    ("host", "chosen"),
    [(0.4, []), (1.4, [16, 32]), (3.0, [16, 32, 64]), (9.0, [16, 32, 64, 128])],
)
def test_steps_that_are_computed_sooner_than_launched_are_captured(
    host: float, chosen: list[int]
) -> None:
    """The host takes so long for any step, and the device a second for 16 tokens."""
    clock, queued, first = [0.0], [0.0], set()

    def launch(count: int) -> None:
        # Compiling takes long, once.
        clock[0] += host if count in first else 100.0
        first.add(count)
        queued[0] = max(queued[0], clock[0] - host) + count / 16

    def wait() -> None:
        clock[0] = max(clock[0], queued[0])

    assert launch_bound([16, 32, 64, 128], launch, wait, lambda: clock[0]) == chosen


class Mixing(RotatingAttend):
    """Something that follows from a layer's heads, and from each token alone."""

    def __init__(self, decoder: Decoder, out: torch.Tensor | None = None) -> None:
        self._num_heads = decoder.spec.num_heads
        self._out = out
        self.layers: list[int] = []

    def __call__(self, layer: int, heads: torch.Tensor) -> torch.Tensor:
        self.layers.append(layer)
        heads.mul_(1 + layer)  # attention writes over them
        answer = heads[:, : self._num_heads] - heads[:, -1:]
        if self._out is not None:
            answer = self._out.copy_(answer)
        return answer.flatten(1)


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "phi3", "mixtral", "qwen3_moe"])
def test_pieces_compute_what_the_decoder_does(
    architecture: str, checkpoint: Callable[[str], Path], capture: Recorded
) -> None:
    folder = checkpoint(architecture)
    parts = FusedParts(TorchKernels())
    with torch.inference_mode():
        decoder = load(folder, read_spec(folder), torch.float32, "cpu", lambda part: None, parts)
        said: list[float] = []
        ids = torch.zeros(40, dtype=torch.int64)
        inputs: Any = SimpleNamespace(ids=ids, positions=torch.zeros_like(ids))
        pieces = PiecewiseGraphs(decoder, inputs, [4, 16, 40], capture, said.append)
        assert said == [1 / 3, 2 / 3, 1.0]
        kept = (pieces._heads, pieces._attended, pieces._hidden)
        assert PiecewiseGraphs.num_bytes(decoder, 40) == sum(tensor.nbytes for tensor in kept)
        layers = list(range(len(decoder.spec.attention.windows)))
        for step, num_tokens in enumerate([16, 3, 40, 17, 4, 1, 15, 16]):
            ids[:num_tokens] = torch.arange(num_tokens) * 7 % 50 + step
            wanted = decoder.hidden(ids[:num_tokens], ids[:num_tokens], Mixing(decoder))
            size = pieces.size_for(num_tokens)
            assert size == min(s for s in (4, 16, 40) if s >= num_tokens)
            # What attention does not write may be anything.
            pieces.attended(40).fill_(torch.nan)
            attend = Mixing(decoder, pieces.attended(num_tokens))
            planned: list[int] = []

            def plan(attend: Mixing = attend, planned: list[int] = planned) -> Mixing:
                planned.append(capture.done)
                return attend

            got = pieces.hidden(size, num_tokens, plan)
            torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)
            assert attend.layers == layers
            # Once, while the device computes the first piece.
            assert planned == [1]
        assert capture.replays == [len(layers) + 1] * 8
        assert pieces.size_for(41) is None


@captured
@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gemma2", "mistral"])
def test_tokens_equal_transformers(
    architecture: str,
    checkpoint: Callable[[str], Path],
    make_device_engine: Make,
    small: None,
    ran: list[tuple[int, int]],
) -> None:
    folder = checkpoint(architecture)
    engine = make_device_engine(
        folder, page_size=2, kv_pages=180, max_batch_tokens=64, max_running=16
    )
    ran.clear()
    compare(engine, golden_model(folder), mixed_prompts(24, 320, 160), 12, must_preempt=None)
    assert {size for size, _ in ran} >= {24, 48}


@captured
def test_steps_are_padded_up_to_the_largest_number(
    make_device_engine: Make, make_engine: Make, small: None, ran: list[tuple[int, int]]
) -> None:
    engine, cpu = make_device_engine(prefix_cache=None), make_engine(prefix_cache=None)
    asked: dict[str, Any] = {"max_tokens": 3, "ignore_eos": True}
    for length, padded in ((8, 8), (9, 24), (24, 24), (25, 48), (48, 48), (49, None)):
        ran.clear()
        prompt = list(range(30, 30 + length))
        assert engine.generate(prompt, **asked) == cpu.generate(prompt, **asked)
        # The tokens after the first are captured whole.
        assert ran == ([] if padded is None else [(padded, length)])
    # A prompt among those that decode: one more than it has.
    engine.submit(PROMPTS[0][:5], max_tokens=9, ignore_eos=True)
    engine.step()
    engine.submit(list(range(90, 97)), max_tokens=2, ignore_eos=True)
    ran.clear()
    engine.step()
    assert ran == [(8, 8)]
    engine.run()


@captured
def test_where_launching_is_never_slower_nothing_is_captured_in_pieces(
    make_device_engine: Make, ran: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warmup, "token_counts", lambda most: [])
    engine = make_device_engine(max_running=4)
    assert len(engine.generate([5, 6, 7], max_tokens=4, ignore_eos=True)) == 4
    assert ran == []


@captured
def test_a_plan_that_fails_behind_the_first_piece_can_be_made_again(
    make_device_engine: Make,
    undisturbed: list[list[int]],
    small: None,
    capture: Recorded,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make_device_engine(max_batch_tokens=40)
    attention = engine.core._runner._attention
    eager, done = attention.eager, []

    def failing(inputs: Any, out: torch.Tensor | None = None) -> RotatingAttend:
        if out is not None and inputs.host.num_lines > 1:
            done.append(capture.done)
            raise MemoryError("no room for a plan")
        attend: RotatingAttend = eager(inputs, out)
        return attend

    monkeypatch.setattr(attention, "eager", failing)
    # Each line of such a step is launched again, alone.
    assert answers(engine) == undisturbed
    assert done
    assert set(done) == {1}


@captured
def test_what_is_asked_of_prompts_is_the_cpus(
    make_device_engine: Make, make_engine: Make, small: None, ran: list[tuple[int, int]]
) -> None:
    asked: dict[str, Any] = {"prompt_logprobs": 2, "logprobs": 1, "max_tokens": 6}
    found = []
    for make in (make_engine, make_device_engine):
        engine = make(max_batch_tokens=40, prefix_cache=None)
        ids = [engine.submit(p, ignore_eos=True, **asked)[0] for p in PROMPTS]
        done = engine.run()
        found.append([done[i] for i in ids])
    assert len(ran) > 3
    for ours, theirs in zip(*found, strict=True):
        assert ours.tokens == theirs.tokens
        assert len(ours.prompt_logprobs) == len(theirs.prompt_logprobs) > 0
        for mine, other in zip(
            ours.prompt_logprobs + ours.logprobs,
            theirs.prompt_logprobs + theirs.logprobs,
            strict=True,
        ):
            assert mine.token == other.token
            assert mine.logprob == pytest.approx(other.logprob, abs=1e-4)


@captured
def test_steps_that_share_a_prefix_are_launched_kernel_by_kernel(
    make_device_engine: Make, make_engine: Make, small: None, ran: list[tuple[int, int]]
) -> None:
    prompts = [[*range(20, 100), 7 + i, *range(30, 33 + i)] for i in range(5)]

    def answered(engine: Any) -> list[list[int]]:
        ids = [engine.submit(p, max_tokens=8, ignore_eos=True)[0] for p in prompts[:4]]
        for _ in range(4):
            engine.step()
        ran.clear()
        ids += engine.submit(prompts[4], max_tokens=8, ignore_eos=True)
        done = engine.run()
        return [done[i].tokens for i in ids]

    wanted = answered(make_engine())
    assert answered(make_device_engine(cascade_attention=True)) == wanted
    assert ran == []
    # The last prompt is among four that decode; what it shares is cached.
    assert answered(make_device_engine()) == wanted
    assert [size for size, _ in ran] == [24]


@pytest.mark.parametrize("make_device_engine", ["paged"], indirect=True)
def test_attention_that_cannot_be_captured_is_not(
    make_device_engine: Make, ran: list[tuple[int, int]]
) -> None:
    engine = make_device_engine(max_running=4)
    assert len(engine.generate([5, 6, 7], max_tokens=4, ignore_eos=True)) == 4
    assert ran == []
