"""Strict capture of draft steps and draft models: replays equal."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.runner.backend import DeviceBackend
from gatewayd_engine.runner.gpu import widths
from gatewayd_engine.runner.gpu.drafter_graphs import PaddedRun
from gatewayd_engine.tuning import matmul, matmul_candidates, tuner
from gatewayd_engine.tuning.matmul_candidates import CublasLt
from gatewayd_engine.tuning.table import TunedMachine, TuningTable
from gatewayd_engine.tuning.tuner import Tuning
from gatewayd_hooks.strategy import Kind
from tests.engine.core.fake_drafters import Guess, guess_with
from tests.engine.core.prompts import PROMPTS
from tests.engine.core.speculation.test_draft_heads import chats
from tests.engine.core.speculation.test_speculation import speculating
from tests.engine.runner.gpu import conftest
from tests.engine.runner.gpu.strict_capture import RecordedWhole, beside
from tests.engine.tuning.fake_matmul import Modules, Recording

Make = Callable[..., Any]
WIDTHS = widths.WIDTHS
pytestmark = pytest.mark.parametrize("make_device_engine", ["own"], indirect=True)


@pytest.fixture
def capture() -> RecordedWhole:
    """In place of the one that launches each time."""
    return RecordedWhole()


@pytest.fixture(autouse=True)
def few_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twins that ask the host are called in each replay; see ``conftest``."""
    attend: Any = TorchKernels.decode_attention

    def narrowed(
        self: Any, query: Any, layer: Any, indptr: Any, pages: Any, *rest: Any, **named: Any
    ) -> None:
        few = pages[: max(int(indptr.numpy()[-1]), 1)]
        attend(query, layer, indptr, few, *rest, **named)

    monkeypatch.setattr(TorchKernels, "decode_attention", narrowed)
    for name in ("decode_attention", "slots"):
        beside(monkeypatch, TorchKernels, name)
    monkeypatch.setattr(widths, "WIDTHS", (4,))


@pytest.mark.usefixtures("small_model")
def test_replays_verify_trees(make_device_engine: Make, capture: RecordedWhole) -> None:
    fields: dict[str, Any] = {"max_running": 2, "max_model_len": 256}
    asked: dict[str, Any] = {"max_tokens": 14, "ignore_eos": True}
    plain = make_device_engine(**fields)
    wanted = [plain.generate(prompt, **asked) for prompt in PROMPTS[:2]]
    known = [prompt + answer for prompt, answer in zip(PROMPTS, wanted, strict=False)]
    engine = guess_with(speculating(make_device_engine, **fields), Guess(known, 0.9, "tree"))
    before = len(capture.replays)
    ids = [engine.submit(prompt, **asked)[0] for prompt in PROMPTS[:2]]
    done = engine.run()
    assert [done[i].tokens for i in ids] == wanted
    assert len(capture.replays) - before > 3
    assert engine.core.stats.accepted_tokens > 8


def test_replays_of_a_small_model_go_on_from_their_own_guesses(
    make_device_engine: Make, capture: RecordedWhole, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields: dict[str, Any] = {"max_running": 2, "max_model_len": 256}
    prompts = [prompt[-60:] for prompt in chats()[:2]]
    plain = make_device_engine(**fields)
    wanted = [plain.generate(prompt, max_tokens=14) for prompt in prompts]
    kept = []
    for is_recorded in (True, False):
        if not is_recorded:
            monkeypatch.setattr(capture, "whole", lambda launches: launches)
        engine = make_device_engine(
            drafter=StrategyChoice("draft_model", {"min_confidence": 0.0}),
            spec_controller=StrategyChoice("fixed", {"drafts": 3}),
            **fields,
        )
        capture.replays.clear()
        ids = [engine.submit(prompt, max_tokens=14)[0] for prompt in prompts]
        done = engine.run()
        assert [done[i].tokens for i in ids] == wanted
        # Of each step one of what is new, two guesses more, and the verification.
        assert (len(capture.replays) > 12) is is_recorded
        kept.append(engine.core.stats.accepted_tokens)
    assert kept[0] == kept[1] > 5


class Shapes(Modules):
    """Notes the matrix of each product, too.

    Attributes:
        shapes: by name, with the number of lines.
    """

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[str, int, tuple[int, ...]]] = []

    def _multiply(self, name: str, x: Any, w: Any, bias: Any, out: Any) -> None:
        self.shapes.append((name, len(x), tuple(w.shape)))
        super()._multiply(name, x, w, bias, out)


def choose_small_matmuls(
    products: Any, sizes: Any, candidates: Any, table: Any, clock: Any, progress: Any
) -> None:
    """Choose for the draft model alone: a slow processor takes minutes for all."""
    small = [one for one in products if 128 in one.matrix.shape and max(one.matrix.shape) < 1000]
    matmul.choose_matmuls(small, sizes, candidates, table, clock, progress, seconds=600.0)


def test_replays_of_a_small_model_multiply_as_was_chosen(
    make_device_engine: Make, capture: RecordedWhole, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = Shapes()
    beside(monkeypatch, Modules, "mm_bf16_cublaslt_run_with_algo")
    monkeypatch.setattr(matmul_candidates, "_handle", lambda: 7)
    monkeypatch.setattr(tuner, "choose_matmuls", choose_small_matmuls)
    tuning = Tuning(
        TuningTable(TunedMachine("a chip", "9.0", {})),
        Recording(modules, cublaslt_1=5.0),
        lambda: [CublasLt(modules, torch.device("cpu"))],
    )
    monkeypatch.setattr(conftest, "DeviceBackend", partial(DeviceBackend, tuning=tuning))
    engine = make_device_engine(
        dtype="bfloat16",
        max_running=2,
        max_model_len=256,
        drafter=StrategyChoice("draft_model", {"min_confidence": 0.0}),
        spec_controller=StrategyChoice("fixed", {"drafts": 3}),
    )
    modules.shapes.clear()
    capture.replays.clear()
    engine.generate(chats()[0][-60:], max_tokens=24, ignore_eos=True)
    assert engine.core.stats.draft_tokens > 5
    assert len(capture.replays) > 5
    # Of heads, and of gates; others lie in the file as they are, not aligned for the candidate.
    for lines in (1, 2):
        own = {(name, shape) for name, n, shape in modules.shapes if n == lines and 128 in shape}
        assert own == {("cublaslt 1", (256, 128)), ("cublaslt 1", (768, 128))}


@pytest.mark.parametrize("name", ["medusa", "eagle"])
def test_replays_of_heads_guess_for_other_rows(
    make_device_engine: Make, capture: RecordedWhole, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """What is captured over no sequence guesses for one, two and three of them."""
    fields: dict[str, Any] = {"max_running": 4, "max_model_len": 256}
    kept: list[list[Any]] = []
    for way in ("replayed", "launched", "failed"):
        engine = speculating_with(make_device_engine, capture, monkeypatch, name, way, fields)
        drafter = engine.core.strategies.bound[Kind.DRAFTER]
        drafter = getattr(drafter, "_captured", drafter)
        runs: list[tuple[int, int]] = []
        replays, run = capture.replays, drafter._run

        def counted(num: int, run: Any = run, replays: Any = replays, runs: Any = runs) -> None:
            before = len(replays)
            run(num)
            runs.append((num, len(replays) - before))

        drafter._run = counted
        ids = [
            engine.submit(prompt[-60:], max_tokens=count, ignore_eos=True)[0]
            for prompt, count in zip(chats()[:3], (6, 10, 16), strict=True)
        ]
        done = engine.run()
        assert engine.core.strategies.num_faults == 0
        assert {num for num, _ in runs} >= {1, 2, 3}
        assert {replayed for _, replayed in runs} == {int(way == "replayed")}
        stats = engine.core.stats
        kept.append([[done[i].tokens for i in ids], stats.accepted_tokens, stats.draft_tokens])
    assert kept[0] == kept[1] == kept[2]
    assert kept[0][1] > 8


def test_replays_verify_trees_of_32_drafts(
    make_device_engine: Make, capture: RecordedWhole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default of Medusa's trees; they are smaller where fewer tokens are wanted."""
    monkeypatch.setattr(widths, "WIDTHS", WIDTHS[-1:])
    fields: dict[str, Any] = {"max_running": 1, "max_model_len": 256}
    prompt = chats()[0][-60:]
    wanted = make_device_engine(**fields).generate(prompt, max_tokens=40, ignore_eos=True)
    engine = make_device_engine(
        drafter=StrategyChoice("medusa"),
        spec_controller=StrategyChoice("fixed", {"drafts": 32}),
        **fields,
    )
    capture.replays.clear()
    assert engine.generate(prompt, max_tokens=40, ignore_eos=True) == wanted
    stats = engine.core.stats
    # A first token, and in each step the heads and the verification.
    assert stats.accepted_tokens > 3
    assert len(capture.replays) >= 2 * (39 - stats.accepted_tokens)


def speculating_with(
    make: Make, capture: Any, monkeypatch: pytest.MonkeyPatch, name: str, way: str, fields: Any
) -> Any:
    """An engine whose drafter is replayed, launched kernel by kernel, or was not captured."""

    def failing(launches: Any) -> Any:
        raise RuntimeError("no capture")

    def whole(self: PaddedRun, capture: Any, progress: Any) -> None:
        if way == "replayed":
            real(self, capture, progress)
        elif way == "failed":
            real(self, SimpleNamespace(whole=failing), progress)

    real = PaddedRun.capture
    capture.replays.clear()
    with monkeypatch.context() as patch:
        patch.setattr(PaddedRun, "capture", whole)
        return make(
            drafter=StrategyChoice(name),
            spec_controller=StrategyChoice("fixed", {"drafts": 3}),
            **fields,
        )
