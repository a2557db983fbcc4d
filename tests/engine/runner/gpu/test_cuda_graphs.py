"""CUDA graphs: captured sizes and order; padded steps choose the same tokens."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gatewayd_engine.runner.gpu import runner as runner_module
from gatewayd_engine.runner.gpu import warmup
from gatewayd_engine.runner.gpu.cuda_graphs import (
    Between,
    CapturedStep,
    CudaCapture,
    Graphs,
    LaunchEach,
    Replay,
    sizes,
)
from tests.engine.core.prompts import PROMPTS

pytestmark = pytest.mark.usefixtures("small_model")

Make = Callable[..., Any]

captured = pytest.mark.parametrize("make_device_engine", ["captured"], indirect=True)


def nothing() -> None:
    """Launches nothing."""


class Made:
    """Takes down which sizes were made."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.progress: list[float] = []

    def make(self, size: int) -> CapturedStep:
        self.sizes.append(size)
        attention: Any = size
        return CapturedStep(attention, nothing, nothing)

    def graphs(self, at: list[int]) -> Graphs[CapturedStep]:
        return Graphs(at, self.make, self.progress.append, "steps of %s")


@given(st.integers(1, 2000))
def test_sizes_leave_small_gaps(max_lines: int) -> None:
    at = sizes(max_lines)
    assert at == sorted(set(at))
    assert at[0] == 1
    assert at[-1] == max_lines
    for below, size in pairwise(at):
        # Never twice the work, and from 256 on at most a sixteenth more of it.
        assert size <= 2 * below
        assert size - below <= max(8, below // 16)
    assert len(at) <= 35 + max(0, max_lines - 256) // 16 + 1


@given(st.sets(st.integers(1, 300), min_size=1), st.integers(1, 320))
def test_the_smallest_size_that_is_enough(at: set[int], lines: int) -> None:
    graphs = Made().graphs(list(at))
    wanted = min((size for size in at if size >= lines), default=None)
    size = graphs.size_for(lines)
    assert size == wanted
    assert size is None or graphs[size].attention == size  # type: ignore[comparison-overlap]


def test_the_largest_is_made_first() -> None:
    made = Made()
    made.graphs([2, 8, 1, 4])
    assert made.sizes == [8, 4, 2, 1]
    assert made.progress == [0.25, 0.5, 0.75, 1.0]


def test_sizes_whose_capture_fails_are_left_out_and_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = Made()

    def make(size: int) -> CapturedStep:
        if size in (2, 8):
            raise RuntimeError(f"no kernel for {size}")
        return made.make(size)

    graphs = Graphs([1, 2, 4, 8], make, made.progress.append, "decode steps of %s sequences")
    assert [graphs.size_for(num) for num in (1, 2, 3, 4, 5)] == [1, 4, 4, 4, None]
    assert made.progress == [0.25, 0.5, 0.75, 1.0]
    assert caplog.messages == [
        "capture of decode steps of 8 sequences failed",
        "steps not captured: decode steps of 2, 8 sequences; they run slower, kernel by kernel or"
        " padded to a larger size",
    ]
    assert "no kernel for 8" in caplog.text


@captured
@pytest.mark.parametrize("failing", ["whole", "pieces"])
def test_an_engine_whose_captures_fail_serves_the_same(
    make_device_engine: Make,
    monkeypatch: pytest.MonkeyPatch,
    undisturbed: list[list[int]],
    replayed: list[tuple[str, int]],
    failing: str,
) -> None:
    def fail(self: LaunchEach, launches: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(LaunchEach, failing, fail)
    engine = make_device_engine(max_running=4)
    ids = [engine.submit(p, max_tokens=12, ignore_eos=True)[0] for p in PROMPTS[:3]]
    done = engine.run()
    assert [done[i].tokens for i in ids] == undisturbed[:3]
    assert bool(replayed) == (failing == "pieces")


@captured
def test_with_capture_off_nothing_is_captured(
    make_device_engine: Make,
    replayed: list[tuple[str, int]],
    undisturbed: list[list[int]],
    device_runner: Callable[[Any], Any],
) -> None:
    engine = make_device_engine(max_running=4, capture="off")
    (only,) = engine.submit(PROMPTS[0], max_tokens=12, ignore_eos=True)
    assert engine.run()[only].tokens == undisturbed[0]
    assert replayed == []
    runner = device_runner(engine)
    assert runner._graphs is runner._pieces is None


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Which captured steps run; filled once engines are made."""
    seen: list[tuple[str, int]] = []

    class Spied(Graphs[list[CapturedStep]]):
        def __getitem__(self, size: int) -> list[CapturedStep]:
            def noted(name: str, replay: Replay) -> Replay:
                def run() -> None:
                    seen.append((name, size))
                    replay()

                return run

            return [
                CapturedStep(
                    step.attention, noted("forward", step.forward), noted("whole", step.whole)
                )
                for step in super().__getitem__(size)
            ]

    monkeypatch.setattr(runner_module, "Graphs", Spied)
    return seen


@captured
@pytest.mark.parametrize("num", [1, 3, 5, 8])
def test_a_padded_step_chooses_what_an_exact_one_does(
    make_device_engine: Make, monkeypatch: pytest.MonkeyPatch, num: int
) -> None:
    asked: dict[str, Any] = {"max_tokens": 10, "ignore_eos": True, "temperature": 0.8, "top_p": 0.9}
    found = []
    for at in ([num], [16]):
        monkeypatch.setattr(warmup, "sizes", lambda max_lines, at=at: at)
        engine = make_device_engine(max_running=16)
        ids = [engine.submit(p, seed=i, **asked)[0] for i, p in enumerate(PROMPTS[:num])]
        done = engine.run()
        found.append([done[i].tokens for i in ids])
    assert found[0] == found[1]


@captured
def test_what_is_captured_follows_from_what_is_asked(
    make_device_engine: Make, replayed: list[tuple[str, int]]
) -> None:
    engine = make_device_engine(max_running=8)

    def run(num: int, **fields: Any) -> set[tuple[str, int]]:
        replayed.clear()
        for prompt in PROMPTS[:num]:
            engine.submit(prompt, max_tokens=6, ignore_eos=True, **fields)
        engine.run()
        return set(replayed)

    # Tokens alone: all in one, greedy or drawn.
    assert run(3) == {("whole", 4)}
    assert run(5, temperature=0.9, top_k=5) == {("whole", 8)}
    # What somebody has to look at the logits for.
    assert run(2, logprobs=0) == {("forward", 2)}
    assert run(1, frequency_penalty=0.5) == {("forward", 1)}
    assert run(1, logit_bias=[(9, 2.0)]) == {("forward", 1)}


@captured
def test_a_prompt_among_those_that_decode_is_not_captured(
    make_device_engine: Make, replayed: list[tuple[str, int]]
) -> None:
    engine = make_device_engine(max_running=8)
    engine.submit(PROMPTS[0], max_tokens=6, ignore_eos=True)
    for _ in range(3):
        engine.step()
    assert replayed == [("whole", 1)] * 2
    engine.submit(PROMPTS[1], max_tokens=3, ignore_eos=True)
    engine.step()
    assert replayed == [("whole", 1)] * 2
    engine.step()
    assert replayed[2:] == [("whole", 2)]


@captured
def test_a_prompt_of_one_token_is_captured_with_the_others(
    make_device_engine: Make, replayed: list[tuple[str, int]], undisturbed: list[list[int]]
) -> None:
    engine = make_device_engine(max_running=8)
    (old,) = engine.submit(PROMPTS[0], max_tokens=12, ignore_eos=True)
    engine.step()
    (new,) = engine.submit([9], max_tokens=4, ignore_eos=True)
    engine.step()
    assert replayed == [("whole", 2)]
    done = engine.run()
    assert done[old].tokens == undisturbed[0]
    assert done[new].tokens == make_device_engine().generate([9], max_tokens=4, ignore_eos=True)


def test_without_a_capture_launches_are_launched() -> None:
    calls: list[int] = []
    replay = LaunchEach().whole(lambda: calls.append(1))
    assert calls == []
    replay()
    replay()
    assert calls == [1, 1]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What torch is asked for, in order."""
    calls: list[str] = []
    num_graphs = 0

    class Graph:
        def __init__(self) -> None:
            nonlocal num_graphs
            self.number = num_graphs
            num_graphs += 1

        def capture_begin(self, pool: str) -> None:
            calls.append(f"begin {self.number} in {pool}")

        def capture_end(self) -> None:
            calls.append(f"end {self.number}")
            if "failed" in calls:
                raise RuntimeError("what was captured is of no use")

        def replay(self) -> None:
            calls.append(f"replay {self.number}")

    class Stream:
        def __init__(self, device: object = None) -> None:
            pass

        def wait_stream(self, other: object) -> None:
            pass

    fakes: dict[str, Any] = {
        "CUDAGraph": Graph,
        "Stream": Stream,
        "current_stream": Stream,
        "graph_pool_handle": map("pool{}".format, ("", *range(9))).__next__,
        "stream": nullcontext,
        "synchronize": lambda: calls.append("synchronize"),
        "empty_cache": nothing,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    return calls


def test_pieces_are_captured_one_after_the_other_and_replayed_so(said: list[str]) -> None:
    def launches(between: Between) -> None:
        for layer in range(2):
            said.append(f"before {layer}")
            between(layer)
        said.append("after")

    replay = CudaCapture(torch.device("cuda")).pieces(launches)
    rehearsed = ["before 0", "before 1", "after", "synchronize"]
    assert said[:4] == rehearsed
    assert said[4:] == [
        "begin 0 in pool",
        "before 0",
        "end 0",
        "begin 1 in pool",
        "before 1",
        "end 1",
        "begin 2 in pool",
        "after",
        "end 2",
    ]
    for _ in range(2):
        said.clear()
        replay(lambda layer: said.append(f"attend {layer}"))
        assert said == ["replay 0", "attend 0", "replay 1", "attend 1", "replay 2"]


def test_what_is_captured_whole_is_one_graph(said: list[str]) -> None:
    replay = CudaCapture(torch.device("cuda")).whole(lambda: said.append("launch"))
    assert said == ["launch", "synchronize", "begin 0 in pool", "launch", "end 0"]
    said.clear()
    replay()
    assert said == ["replay 0"]


@pytest.mark.parametrize("kind", ["whole", "pieces"])
def test_what_is_captured_over_lives_as_long_as_its_replay(said: list[str], kind: str) -> None:
    capture = CudaCapture(torch.device("cuda"))

    def made() -> tuple[Callable[..., None], weakref.ref[torch.Tensor]]:
        tensor = torch.zeros(3)
        replay: Callable[..., None] = getattr(capture, kind)(lambda *_: tensor.add_(1))
        return replay, weakref.ref(tensor)

    replay, tensor = made()
    gc.collect()
    assert tensor() is not None
    del replay
    gc.collect()
    assert tensor() is None


def test_a_whole_capture_that_fails_says_why(said: list[str]) -> None:
    def launches() -> None:
        if said:
            said.append("failed")
            raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        CudaCapture(torch.device("cuda")).whole(launches)
    assert said[-3:] == ["begin 0 in pool", "failed", "end 0"]


def test_a_capture_that_fails_is_ended_and_says_why(said: list[str]) -> None:
    def launches(between: Between) -> None:
        between(0)
        if "begin 1 in pool" in said:
            said.append("failed")
            raise MemoryError("no room")

    capture = CudaCapture(torch.device("cuda"))
    with pytest.raises(MemoryError, match="no room"):
        capture.pieces(launches)
    assert said[-3:] == ["begin 1 in pool", "failed", "end 1"]


def test_after_a_capture_that_failed_others_follow_in_a_pool_of_their_own(
    said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(device: int, pool: str) -> None:
        said.append(f"recording to {pool} ended")

    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", stopped, raising=False)
    capture = CudaCapture(torch.device("cuda"))

    def launches() -> None:
        if "begin 0 in pool" in said:
            said.append("failed")
            raise RuntimeError("invalid launch")

    with pytest.raises(RuntimeError, match="invalid launch"):
        capture.whole(launches)
    # Torch refuses to begin in a pool that it still records to.
    assert said[-1] == "recording to pool ended"
    said.clear()
    capture.whole(lambda: said.append("launch"))
    assert said[-3:] == ["begin 1 in pool0", "launch", "end 1"]
