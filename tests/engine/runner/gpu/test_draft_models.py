"""Draft models on a device: same answers, one host sync per step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from gatewayd_draft_eagle.captured_drafting import CapturedDrafting
from gatewayd_draft_medusa.strategy import Medusa
from gatewayd_engine.attention import draft_slots
from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.model import embedded
from gatewayd_engine.model.loading.loader import load
from gatewayd_engine.model.parts import FusedParts
from gatewayd_engine.model.spec import read_spec
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.runner.draft_model import row_model
from gatewayd_engine.runner.gpu import warmup, widths
from gatewayd_engine.runner.gpu.cuda_graphs import LaunchEach
from gatewayd_engine.runner.gpu.draft_model import DeviceRowModel
from gatewayd_engine.runner.gpu.drafter_graphs import DrafterLaunches
from gatewayd_engine.speculation.draft_models import load_draft_model
from gatewayd_hooks.strategy import Kind
from tests.engine.core.speculation.test_draft_heads import chats
from tests.engine.runner.gpu import conftest
from tests.engine.runner.gpu.host_syncs import watch
from tests.engine.runner.gpu.triton_specializations import Noted

Make = Callable[..., Any]
captured = pytest.mark.parametrize("make_device_engine", ["captured"], indirect=True)


def answers(engine: Any, num: int, count: int) -> list[list[int]]:
    """Half of them drawn, each by its seed."""
    ids = [
        engine.submit(prompt, max_tokens=count, seed=i, temperature=0.7 * (i % 2))[0]
        for i, prompt in enumerate(chats()[:num])
    ]
    done = engine.run()
    assert all(done[i].finished.error is None for i in ids)
    assert engine.core.strategies.num_faults == 0
    return [done[i].tokens for i in ids]


@captured
@pytest.mark.parametrize("name", ["draft_model", "eagle", "medusa"])
def test_answers_are_those_without_drafts_and_guessing_waits_once(
    make_device_engine: Make, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(widths, "WIDTHS", (5, 9))
    fields: dict[str, Any] = {"max_running": 4, "max_model_len": 384, "max_batch_tokens": 48}
    plain = answers(make_device_engine(**fields), 3, 12)
    engine = make_device_engine(
        drafter=StrategyChoice(name),
        spec_controller=StrategyChoice("fixed", {"drafts": 6}),
        **fields,
    )
    waits = watch(monkeypatch)
    drafter = engine.core.strategies.watched[Kind.DRAFTER]
    propose, asked = drafter.propose, []

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return getattr(drafter, name)

        def propose(self, batch: Any) -> Any:
            before = waits.asked.total()
            with waits.watched():
                drafts = propose(batch)
            asked.append(waits.asked.total() - before)
            return drafts

        def observe(self, features: Any) -> None:
            with waits.watched():
                drafter.observe(features)

    engine.core.strategies.watched[Kind.DRAFTER] = Watched()
    assert answers(engine, 3, 12) == plain
    stats = engine.core.stats
    assert stats.accepted_tokens > 8
    # The small model's own copy to the host is no wait of the plugin's; heads are read once.
    assert max(asked) <= (0 if name == "draft_model" else 2)
    assert sum(waits.asked.values()) == sum(asked)


@pytest.mark.usefixtures("few_pages")
def test_a_small_model_guesses_what_its_logits_say() -> None:
    """Prompts of several chunks, rows in any order, and more new tokens than are captured."""
    folder = embedded.folder("nano").with_name("nano-draft")
    spec = read_spec(folder, None)
    kernels = TorchKernels()
    decoder = load(folder, spec, torch.float32, "cpu", lambda part: None, FusedParts(kernels))
    mine = DeviceRowModel(decoder, kernels, 4, 300)
    mine.capture(LaunchEach(), lambda part: None)
    other = load_draft_model(str(folder), 4, 300, torch.float32, "cpu", row_model)
    rng = np.random.default_rng(0)
    tokens = rng.integers(2, 4000, (3, 300)).astype(np.int32)
    rows = np.array([2, 0, 3])
    starts = np.zeros(3, np.int64)
    for counts in ([150, 3, 64], [1, 2, 1], [4, 1, 70]):
        told = np.array(counts)
        most = int(told.max())
        new = np.stack([tokens[i, starts[i] : starts[i] + most] for i in range(3)])
        guessed, shares = mine.guess(rows, starts, told, new, 4)
        at = starts + told
        logits = other.extend(rows, starts, told, new)
        for depth in range(4):
            best = logits.softmax(-1).max(-1)
            assert guessed[:, depth].tolist() == best.indices.tolist()
            assert shares[:, depth] == pytest.approx(best.values.numpy(), abs=1e-5)
            one = np.ones(3, np.int64)
            logits = other.extend(rows, at + depth, one, guessed[:, depth : depth + 1])
        starts = at


@captured
@pytest.mark.parametrize("capture_is", ["auto", "off"])
def test_a_small_models_kernels_are_compiled_before_it_guesses(
    make_device_engine: Make, monkeypatch: pytest.MonkeyPatch, capture_is: str
) -> None:
    """Prompts of few and of many lines are read, and guessed behind, with nothing left behind."""
    kernels = Noted()
    monkeypatch.setattr(conftest, "TorchKernels", lambda: kernels)
    for module in (draft_slots, warmup):
        monkeypatch.setattr(module, "num_multiprocessors", lambda device: 32)
    # As on a GPU, where a step is launched before it is captured.
    monkeypatch.setattr(LaunchEach, "whole", lambda self, launches: launches() or launches)
    engine = make_device_engine(
        max_running=12,
        max_model_len=2048,
        capture=capture_is,
        drafter=StrategyChoice("draft_model", {"max_catch_up": 4096}),
        spec_controller=StrategyChoice("fixed", {"drafts": 3}),
    )
    model = engine.core.strategies.bound[Kind.DRAFTER]._model
    pool = model._attention.pool
    assert not pool.data[:-1].any()
    assert not model._rows.last_tokens[:-1].any()
    warmed = set(kernels.kinds)
    kernels.kinds.clear()
    tokens = [token for prompt in chats() for token in prompt]
    for counts in ([40], [300, 5, 70], [1500], [90] * 12):
        for count in counts:
            engine.submit(tokens[:count], max_tokens=4, ignore_eos=True)
        engine.run()
    assert kernels.attended() >= {
        *((64, parts) for parts in (1, 4, 16)),
        *((1, parts) for parts in (4, 16)),
    }
    assert kernels.kinds <= warmed


@captured
@pytest.mark.parametrize("capture_is", ["auto", "off"])
@pytest.mark.parametrize(("name", "owner"), [("eagle", CapturedDrafting), ("medusa", Medusa)])
def test_what_heads_launch_is_compiled_before_they_guess(
    make_device_engine: Make,
    monkeypatch: pytest.MonkeyPatch,
    capture_is: str,
    name: str,
    owner: Any,
) -> None:
    launched: list[int] = []
    launch = owner._launch

    def noted(self: Any, num_lines: int) -> None:
        launched.append(num_lines)
        launch(self, num_lines)

    monkeypatch.setattr(owner, "_launch", noted)
    fields: dict[str, Any] = {"max_running": 4, "max_model_len": 384, "max_batch_tokens": 48}
    fields["capture"] = capture_is
    engine = make_device_engine(drafter=StrategyChoice(name), **fields)
    assert launched == [1, 2, 4]
    assert answers(engine, 3, 12) == answers(make_device_engine(**fields), 3, 12)
    assert engine.core.stats.draft_tokens > 5
    assert len(launched) > 3


def test_what_cannot_be_compiled_does_not_end_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tried: list[int] = []

    def failing(num_lines: int) -> None:
        tried.append(num_lines)
        raise RuntimeError("no kernel")

    launches = DrafterLaunches(4)
    launches(failing, "guesses", 1)
    launches(tried.append, "others", 2)
    launches.compile()
    assert tried == [1, 1, 2, 4]
    assert caplog.messages == ["compilation of guesses of 1 sequences failed"]


def test_a_model_that_its_drafter_has_let_go_of_is_not_captured() -> None:
    done: list[str] = []

    class Model:
        def __init__(self, name: str) -> None:
            self.name = name

        def compile(self) -> None:
            done.append(f"compile {self.name}")

        def capture(self, capture: Any, progress: Any) -> None:
            done.append(f"capture {self.name}")
            progress(1.0)

    launches = DrafterLaunches(4)
    kept, dropped = Model("kept"), Model("dropped")
    launches.add(kept)
    launches.add(dropped)
    launches(lambda lines: done.append(f"launch {lines}"), "guesses", 1)
    del dropped
    launches.compile()
    compiled = ["compile kept", "launch 1", "launch 2", "launch 4"]
    assert done == compiled
    parts: list[float] = []
    launches.capture(LaunchEach(), parts.append)
    assert done == [*compiled, "capture kept"]
    assert parts == sorted(parts)
    assert parts[-1] == 1.0
    launches(lambda lines: done.append(f"launch {lines}"), "guesses", 1)
    launches.compile()
    assert done == [*compiled, "capture kept"]
