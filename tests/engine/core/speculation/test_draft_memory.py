"""Draft model KV: part of the KV memory."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gatewayd_engine.core import build
from gatewayd_engine.core.hot_swap import EngineSwapRefused
from gatewayd_engine.model import embedded
from gatewayd_engine.model.spec import read_spec
from gatewayd_engine.process.config import EngineConfig, EngineConfigError, StrategyChoice
from gatewayd_engine.runner.draft_model import RowModel
from gatewayd_engine.speculation.draft_models import draft_bytes_needed
from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.strategy import Kind
from tests.engine.core.hot_swaps import swap
from tests.engine.core.prompts import PROMPTS, answers

Make = Callable[..., Any]
SMALL = StrategyChoice("draft_model")
MIB = 1 << 20
TOKEN = 2 * 2 * 64 * 4  # nano-draft: layers, keys and values, one head of 64, float32
PAGE = 6 * 2 * 2 * 64 * 4 * 16  # nano
SIZES: dict[str, Any] = {"max_running": 8, "kv_pages": None, "max_model_len": 512}
NEEDED = 8 * 512 * TOKEN


def small(engine: Any) -> Any:
    return engine.core.strategies.bound[Kind.DRAFTER]._model


def pool_bytes(engine: Any) -> int:
    return int(engine.info.num_pages) * PAGE


def test_what_it_needs_is_what_its_pool_takes() -> None:
    folder = Path(embedded.folder("nano")).with_name("nano-draft")
    assert draft_bytes_needed(folder, 8, 512, torch.float32) == NEEDED
    assert draft_bytes_needed(folder, 8, 1 << 20, torch.float32) == 8 * 2048 * TOKEN


@pytest.mark.parametrize("kv_bytes", [NEEDED + 16 * PAGE, NEEDED + 32 * PAGE + 5])
def test_at_the_start_the_pool_has_what_the_draft_model_leaves(
    make_engine: Make, kv_bytes: int
) -> None:
    alone = make_engine(kv_bytes=kv_bytes, **SIZES)
    beside = make_engine(kv_bytes=kv_bytes, drafter=SMALL, **SIZES)
    assert alone.info.num_pages == kv_bytes // PAGE
    assert beside.info.num_pages == (kv_bytes - NEEDED) // PAGE
    model = small(beside)
    assert model.max_model_len == beside.info.max_model_len
    taken = model._attention._data.nbytes
    # One page more is scratch, as in any pool.
    assert pool_bytes(beside) + taken <= kv_bytes + 64 * TOKEN


@pytest.mark.parametrize(("device", "share"), [("cpu", 1), ("cuda", 4)])
def test_on_a_gpu_it_gets_a_share_of_what_there_is(device: str, share: int) -> None:
    none = StrategyChoice("none")
    folder = embedded.folder("nano")
    config = EngineConfig(
        str(folder), none, None, none, none, drafter=SMALL, device=device, max_running=8
    )
    spec = read_spec(folder, 512)
    host = PluginHost(Catalog.installed())
    found = build._draft_reserve(config, host, spec, torch.float32, NEEDED)
    assert found == NEEDED // share
    assert build._draft_reserve(config, host, spec, torch.float32, 8 * NEEDED) == NEEDED


def test_what_does_not_fit_at_the_start_is_refused_in_a_sentence(make_engine: Make) -> None:
    with pytest.raises(EngineConfigError, match=f"the draft model needs {NEEDED} for 8 sequences"):
        make_engine(kv_bytes=NEEDED + PAGE - 1, drafter=SMALL, **SIZES)


def test_one_that_is_swapped_in_gets_what_is_left(
    make_engine: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    most = 8 * 32 * PAGE
    engine = make_engine(kv_bytes=most + 3 * 8 * 64 * TOKEN + 7, **SIZES)
    assert pool_bytes(engine) == most
    plain = answers(engine)
    for _ in range(3):  # it gives back what it takes
        swap(engine, Kind.DRAFTER, SMALL)
        assert small(engine).max_model_len == 3 * 64
        assert "speculating for sequences of up to 192 tokens" in caplog.text
        assert answers(engine) == plain
        swap(engine, Kind.DRAFTER)
    assert engine.core.stats.accepted_tokens > 0


def test_one_that_does_not_fit_is_refused_and_what_was_before_goes_on(make_engine: Make) -> None:
    engine = make_engine(kv_bytes=8 * 32 * PAGE + 8 * 64 * TOKEN - 1, **SIZES)
    swap(engine, Kind.DRAFTER, StrategyChoice("ngram"))
    plain = answers(engine)
    with pytest.raises(EngineSwapRefused, match=r"needs 4\.0 MiB .* 0\.5 MiB are free"):
        swap(engine, Kind.DRAFTER, SMALL)
    assert engine.core.strategies.names["drafter"] == "ngram"
    assert answers(engine) == plain


def test_one_that_cannot_be_loaded_gives_back_what_it_took(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(kv_bytes=8 * 32 * PAGE + NEEDED, **SIZES)

    def no(*args: Any) -> Any:
        raise OSError("cannot be read")

    with monkeypatch.context() as context:
        context.setattr("gatewayd_engine.speculation.draft_models.load", no)
        with pytest.raises(EngineSwapRefused, match="cannot be read"):
            swap(engine, Kind.DRAFTER, SMALL)
    swap(engine, Kind.DRAFTER, SMALL)
    assert small(engine).max_model_len == 512
    assert engine.generate(PROMPTS[0], max_tokens=8, ignore_eos=True)


def test_one_that_is_swapped_in_later_finds_what_was_kept_for_it(make_engine: Make) -> None:
    kv_bytes = NEEDED + 32 * PAGE
    with pytest.raises(EngineSwapRefused, match=r"with \[engine\] draft_memory at 4\.0 MiB"):
        swap(make_engine(kv_bytes=kv_bytes, **SIZES), Kind.DRAFTER, SMALL)
    for draft_bytes, length in ((NEEDED, 512), (NEEDED // 4, 128)):
        engine = make_engine(kv_bytes=kv_bytes, draft_bytes=draft_bytes, **SIZES)
        assert engine.info.num_pages == (kv_bytes - draft_bytes) // PAGE
        plain = answers(engine)
        swap(engine, Kind.DRAFTER, SMALL)
        assert small(engine).max_model_len == length
        assert answers(engine) == plain


def test_what_is_to_be_kept_may_be_less_than_the_drafter_needs_and_not_more_than_there_is(
    make_engine: Make,
) -> None:
    engine = make_engine(
        kv_bytes=NEEDED // 4 + 16 * PAGE, draft_bytes=NEEDED // 4, drafter=SMALL, **SIZES
    )
    assert (engine.info.num_pages, small(engine).max_model_len) == (16, 128)
    with pytest.raises(EngineConfigError, match=f"of which draft_memory is {NEEDED}"):
        make_engine(kv_bytes=NEEDED + PAGE - 1, draft_bytes=NEEDED, **SIZES)


def test_its_settings_change_where_there_is_no_memory_for_a_second_one(make_engine: Make) -> None:
    engine = make_engine(kv_bytes=NEEDED + 32 * PAGE, drafter=SMALL, **SIZES)
    plain = answers(make_engine(kv_bytes=NEEDED + 32 * PAGE, **SIZES))
    model = small(engine)
    ids = [engine.submit(p, max_tokens=12, ignore_eos=True)[0] for p in PROMPTS]
    engine.step()
    engine.step()
    for confidence in (0.0, 0.6, 0.1):
        swap(engine, Kind.DRAFTER, StrategyChoice("draft_model", {"min_confidence": confidence}))
        assert small(engine) is model
        engine.step()
    engine.run()
    assert [engine.answers[i].tokens for i in ids] == plain
    assert answers(engine) == plain
    assert engine.core.stats.faults == 0
    del model
    swap(engine, Kind.DRAFTER)
    swap(engine, Kind.DRAFTER, SMALL)  # its memory came back, once
    assert small(engine).max_model_len == 512


def test_one_that_has_ended_an_engine_can_come_back_to_the_next(make_engine: Make) -> None:
    engine = make_engine(
        kv_bytes=NEEDED + 32 * PAGE, drafter=SMALL, quarantined=[["drafter", SMALL.name]], **SIZES
    )
    assert Kind.DRAFTER not in engine.core.strategies.bound
    swap(engine, Kind.DRAFTER, SMALL)
    assert small(engine).max_model_len == 512


def test_one_that_has_ended_an_engine_and_cannot_be_loaded_keeps_no_engine_from_starting(
    make_engine: Make,
) -> None:
    gone = StrategyChoice("nobody")
    engine = make_engine(drafter=gone, quarantined=[["drafter", "nobody"]])
    assert Kind.DRAFTER not in engine.core.strategies.bound


def test_pages_that_are_counted_by_hand_leave_memory_for_it(make_engine: Make) -> None:
    sizes = {**SIZES, "kv_pages": 256, "kv_bytes": 16 * PAGE}
    engine = make_engine(drafter=SMALL, **sizes)
    assert (engine.info.num_pages, small(engine).max_model_len) == (256, 512)
    engine = make_engine(draft_bytes=NEEDED, **sizes)
    swap(engine, Kind.DRAFTER, SMALL)
    assert (engine.info.num_pages, small(engine).max_model_len) == (256, 512)


def test_after_a_fault_its_model_is_not_read_again(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {**SIZES, "kv_bytes": NEEDED + 32 * PAGE}
    plain = answers(make_engine(**sizes))
    always = StrategyChoice("fixed", {"drafts": 4})
    engine = make_engine(drafter=SMALL, spec_controller=always, **sizes)
    model, extend, calls = small(engine), RowModel._extend, iter(range(1, 1000))

    def fails(self: Any, *args: Any) -> Any:
        logits = extend(self, *args)
        if next(calls) in (6, 15):
            raise RuntimeError("in the middle")
        return logits

    def no(*args: Any) -> Any:
        raise AssertionError("read again")

    with monkeypatch.context() as context:
        context.setattr(RowModel, "_extend", fails)
        context.setattr("gatewayd_engine.speculation.draft_models.load", no)
        assert answers(engine) == plain
    assert engine.core.stats.faults == 2
    assert small(engine) is model
    assert engine.core.stats.accepted_tokens > 0


def test_one_that_is_quarantined_gives_its_memory_back(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(kv_bytes=NEEDED + 32 * PAGE, drafter=SMALL, **SIZES)

    def fails(self: Any, *args: Any) -> Any:
        raise RuntimeError("always")

    with monkeypatch.context() as context:
        context.setattr(RowModel, "_extend", fails)
        answers(engine)
    assert engine.core.stats.faults == 3
    assert Kind.DRAFTER not in engine.core.strategies.bound
    swap(engine, Kind.DRAFTER, SMALL)
    assert small(engine).max_model_len == 512


def test_one_that_was_replaced_after_a_fault_gives_its_memory_back(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(kv_bytes=NEEDED + 32 * PAGE, drafter=SMALL, **SIZES)

    def fails(self: Any, *args: Any) -> Any:
        raise RuntimeError("once")

    with monkeypatch.context() as context:
        context.setattr(RowModel, "_extend", fails)
        # What is logged is kept for the report of a test, and with it the frames of the fault.
        context.setattr("gatewayd_engine.strategies.recovery._log", logging.Logger("nobody"))
        engine.submit(PROMPTS[0], max_tokens=12, ignore_eos=True)
        while not engine.core.stats.faults:
            engine.step()
        gone = weakref.ref(engine.core.strategies._standby[Kind.DRAFTER]._strategy._model)
    swap(engine, Kind.DRAFTER)
    assert gone() is None
    engine.run()
    assert Kind.DRAFTER not in engine.core.strategies.bound
