"""Decode attention kernels in captured steps of whole engines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gatewayd_engine.attention.step_inputs import HostPlan
from gatewayd_engine.attention.triton_decode import CapturedDecode
from gatewayd_engine.runner.gpu.cuda_graphs import Capture, LaunchEach, Replay
from tests.engine.core.golden import golden_model
from tests.engine.core.models.test_tokens import compare
from tests.engine.runner.gpu.conftest import mixed_prompts
from tests.engine.runner.gpu.strict_capture import NothingRead, RecordedWhole

pytestmark = pytest.mark.usefixtures("small_model")

Make = Callable[..., Any]


class RecordedSteps(RecordedWhole):
    """Only without the stand-in for FlashInfer, which computes on the host."""

    def whole(self, launches: Replay) -> Replay:
        with NothingRead():
            return super().whole(launches)


@pytest.fixture
def capture(request: pytest.FixtureRequest) -> Capture:
    """In place of the one that launches each time."""
    is_own = request.node.callspec.params["make_device_engine"] == "own"
    return RecordedSteps() if is_own else LaunchEach()


@pytest.mark.parametrize("make_device_engine", ["own"], indirect=True)
def test_windows_give_the_tokens_of_transformers(
    checkpoint: Callable[[str], Path],
    make_device_engine: Make,
    device_runner: Callable[[Any], Any],
) -> None:
    folder = checkpoint("mistral")
    engine = make_device_engine(
        folder, page_size=8, kv_pages=60, max_batch_tokens=64, max_running=4, max_model_len=320
    )
    assert device_runner(engine)._graphs.size_for(4) == 4
    compare(engine, golden_model(folder), mixed_prompts(4, 300, 160), 8, must_preempt=None)


@pytest.mark.parametrize("make_device_engine", ["own", "captured"], indirect=True)
def test_steps_of_lines_that_share_a_beginning_are_replayed(
    make_device_engine: Make,
    make_engine: Make,
    device_runner: Callable[[Any], Any],
    capture: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prompts = [[*range(20, 100), 7 + i, *range(30, 33 + i)] for i in range(4)]
    alone = [*range(200, 260)]
    replayed: list[bool] = []
    plan = CapturedDecode.plan

    def noted(self: CapturedDecode, host: HostPlan) -> None:
        assert (self._shared is not None) is (host.shared_pages > 0)
        assert self._shared is None or int(self._shared.num_pages) == host.shared_pages
        replayed.append(self._shared is not None)
        plan(self, host)

    monkeypatch.setattr(CapturedDecode, "plan", noted)

    def answered(engine: Any) -> list[list[int]]:
        ids = [engine.submit(p, max_tokens=8, ignore_eos=True)[0] for p in prompts]
        for _ in range(6):
            engine.step()
        ids += engine.submit(alone, max_tokens=8, ignore_eos=True)
        done = engine.run()
        return [done[i].tokens for i in ids]

    engine = make_device_engine(cascade_attention=True, max_running=5, max_model_len=128)
    eager: list[int] = []
    runner = device_runner(engine)
    hidden = runner._hidden

    def seen(batch: Any) -> Any:
        eager.append(batch.num_decode if batch.num_decode == len(batch) else 0)
        return hidden(batch)

    monkeypatch.setattr(runner, "_hidden", seen)
    assert answered(engine) == answered(make_engine())
    assert replayed.count(True) >= 3  # until the one joins that begins otherwise
    assert not any(eager)  # all steps without prompts
    if isinstance(capture, RecordedSteps):
        # Those that were noted are done again, and read nothing on the host.
        assert capture.replays.count(1) == len(replayed)
