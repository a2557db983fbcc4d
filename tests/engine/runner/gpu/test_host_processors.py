"""Logits processors that read tokens on the host: called late, steps still overlap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from gatewayd_engine.kernels.transfers import PendingHostCopy
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.process.messages import SamplingParams
from gatewayd_engine.process.plugin_faults import STRATEGY_ERROR
from gatewayd_engine.sampling.processors import Processors
from tests.engine.core.prompts import PROMPTS

pytestmark = pytest.mark.usefixtures("small_model")

Make = Callable[..., Any]
NONE = np.zeros(0, np.int32)
PARAMS = SamplingParams(max_tokens=8)


class Reader:
    """Takes down what it is told, and when."""

    reads_tokens = True

    def __init__(self, calls: list[Any]) -> None:
        self.calls = calls

    def admit(self, row: int, *rest: object) -> bool:
        return True

    def remove(self, row: int) -> None:
        self.calls.append(("remove", row))

    def append(self, rows: torch.Tensor, tokens: torch.Tensor) -> None:
        assert tokens.dtype == rows.dtype == torch.int64
        assert tokens.device.type == "cpu"
        if 13 in tokens:
            raise RuntimeError("unlucky")
        self.calls.append(list(zip(rows.tolist(), tokens.tolist(), strict=True)))

    def apply(self, logits: torch.Tensor, index: torch.Tensor, rows: torch.Tensor) -> None:
        self.calls.append(("apply", rows.tolist()))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a reader is told, and where the host waits for a copy."""
    seen: list[Any] = []
    read = PendingHostCopy.read

    def noted(pending: PendingHostCopy) -> Any:
        seen.append("wait")
        return read(pending)

    monkeypatch.setattr(PendingHostCopy, "read", noted)
    return seen


@pytest.fixture
def processors(calls: list[Any]) -> Processors:
    """A chain of a reader, with rows 0 to 2."""
    reader: Any = Reader(calls)
    made = Processors(["reader"], [reader], 4, lambda name, error: False)
    for row in range(3):
        made.add_row(row, PARAMS, NONE, NONE)
    return made


def apply(processors: Processors, *rows: int) -> dict[int, Any]:
    logits = torch.zeros(len(rows), 8)
    return processors.apply(logits, np.array(rows), lambda: torch.zeros(len(rows), 8))


def append(processors: Processors, *pairs: tuple[int, int]) -> dict[int, Any]:
    rows, tokens = zip(*pairs, strict=True)
    sampled = torch.tensor(tokens, dtype=torch.int32)
    return processors.append(np.array(rows), sampled)


def test_tokens_are_told_in_order_before_the_next_logits(
    processors: Processors, calls: list[Any]
) -> None:
    assert append(processors, (2, 5), (0, 6)) == append(processors, (0, 7)) == {}
    assert calls == []
    assert apply(processors, 0, 2) == {}
    assert calls == ["wait", [(2, 5), (0, 6)], "wait", [(0, 7)], ("apply", [0, 2])]


def test_tokens_of_a_sequence_that_left_its_row_are_dropped(
    processors: Processors, calls: list[Any]
) -> None:
    append(processors, (0, 5), (1, 6), (2, 7))
    processors.remove(0)
    processors.remove(1)
    processors.add_row(1, PARAMS, NONE, NONE)
    calls.clear()
    apply(processors, 1, 2)
    assert calls == ["wait", [(2, 7)], ("apply", [1, 2])]


def test_another_chain_does_not_lose_tokens(processors: Processors, calls: list[Any]) -> None:
    append(processors, (0, 5))
    other: Any = Reader(calls)
    processors.replace(["other"], [other])
    assert calls == ["wait", [(0, 5)]]
    apply(processors, 0)
    assert calls[2:] == [("apply", [0])]


def test_what_raises_late_fails_its_requests_at_the_next_step(
    processors: Processors, calls: list[Any]
) -> None:
    assert append(processors, (0, 5), (1, 13)) == {}
    failed = apply(processors, 0, 1, 2)
    assert {line: fault[0] for line, fault in failed.items()} == dict.fromkeys(
        (0, 1), STRATEGY_ERROR
    )
    assert calls == ["wait", ("apply", [2])]


@pytest.mark.parametrize("make_device_engine", ["captured"], indirect=True)
def test_a_marked_answer_is_the_cpus_and_is_launched_ahead(
    make_device_engine: Make, make_engine: Make, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = [StrategyChoice("watermark", {"secret": "0123456789abcdef", "requests": "all"})]
    asked: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True}
    found = []
    for make in (make_engine, make_device_engine):
        engine = make(logits_processors=mark)
        ids = [engine.submit(p, **asked)[0] for p in PROMPTS[:3]]
        done = engine.run()
        found.append([done[i].tokens for i in ids])
    assert found[0] == found[1]
    runner = engine.core._runner
    launched = runner._decoder.hidden

    def noted(*args: Any) -> Any:
        calls.append("layers")
        return launched(*args)

    monkeypatch.setattr(runner._decoder, "hidden", noted)
    engine.submit(PROMPTS[0], **asked)
    engine.step()
    calls.clear()
    for _ in range(4):
        engine.step()
    # The layers of each step are launched before tokens of the one before are waited for.
    assert calls[:2] == ["layers", "wait"]
    assert calls.count("layers") == 4
