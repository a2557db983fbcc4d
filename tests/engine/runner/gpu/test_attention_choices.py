"""Attention choices: captured decode steps use what is fastest as it is launched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gatewayd_engine.attention.triton_decode import CapturedDecode, DecodeAttention, DecodeKernels
from gatewayd_engine.attention.tune_decode import DecodeChoice
from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.runner.backend import DeviceBackend
from gatewayd_engine.tuning.table import TunedMachine, TuningTable
from gatewayd_engine.tuning.tuner import Tuning
from tests.engine.runner.gpu import conftest

pytestmark = [
    pytest.mark.usefixtures("small_model"),
    pytest.mark.parametrize("make_device_engine", ["captured"], indirect=True),
]
MACHINE = TunedMachine("a chip", "9.0", {})
Make = Callable[..., Any]


class Attending:
    """A clock by the attention that is launched, and by the way it is.

    Attributes:
        asked: how often it was.
    """

    def __init__(self, own: dict[bool, float], early: float) -> None:
        self.own, self.early = own, early
        self.asked = 0
        self.kernels: Any = None

    def __call__(self, calls: Sequence[Callable[[], object]]) -> float:
        self.asked += 1
        for call in calls:
            call()
        is_early = self.kernels.launches_early
        launched: Any = calls[0]
        attention = getattr(getattr(launched, "func", None), "__self__", None)
        if attention is None:  # a whole step
            return self.early if is_early else 100.0
        return self.own[is_early] if isinstance(attention, CapturedDecode) else 10.0


def starting(
    make: Make, monkeypatch: pytest.MonkeyPatch, table: TuningTable, clock: Attending, **fields: Any
) -> Any:
    """An engine that chooses between FlashInfer's stand-in and ours."""

    def attention(kernels: DecodeKernels, other: Any, least: int | None) -> DecodeAttention:
        clock.kernels = kernels._kernels
        choice = DecodeChoice(kernels.shape, kernels.pool, clock.kernels, table, clock)
        return DecodeAttention(kernels, other, least, choice)

    tuning = Tuning(table, clock, lambda: [])
    with monkeypatch.context() as patch:
        patch.setattr(conftest, "DecodeAttention", attention)
        patch.setattr(conftest, "DeviceBackend", partial(DeviceBackend, tuning=tuning))
        return make(**fields)


@pytest.mark.parametrize(
    ("own", "early", "kind"),
    [
        ({False: 12.0, True: 7.0}, 90.0, "CapturedDecode"),
        ({False: 7.0, True: 12.0}, 90.0, "_Captured"),
        ({False: 7.0, True: 12.0}, 99.0, "CapturedDecode"),
    ],
)
def test_attention_is_chosen_for_the_way_in_which_it_will_be_launched(
    make_device_engine: Make,
    device_runner: Callable[[Any], Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    own: dict[bool, float],
    early: float,
    kind: str,
) -> None:
    monkeypatch.setattr(TorchKernels, "can_launch_early", True)
    entries = []
    for start in range(2):
        table, clock = TuningTable(MACHINE, tmp_path), Attending(own, early)

        engine = starting(
            make_device_engine, monkeypatch, table, clock, max_running=2, kv_bytes=1 << 20
        )
        runner = device_runner(engine)
        assert clock.kernels.launches_early == (early == 90.0)
        # Two starts from one table agree, and the second measures nothing.
        assert bool(clock.asked) == (start == 0)
        entries.append(table.entries)
        for size in (1, 2):
            assert [type(s.attention).__name__ for s in runner._graphs[size]] == [kind]
    assert entries[0] == entries[1]
    ops = {(e.op, e.sizes["m"], e.sizes.get("early")) for e in entries[0]}
    assert ("launches", 2, 0) in ops
    assert ("decode_attention", 2, 0) in ops
    assert (("decode_attention", 2, 1) in ops) == (early == 90.0)


@pytest.mark.parametrize("can_launch_early", [False, True])
def test_sizes_share_the_choice_of_the_largest_of_them_with_and_without_drafts(
    make_device_engine: Make,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    can_launch_early: bool,
) -> None:
    monkeypatch.setattr(TorchKernels, "can_launch_early", can_launch_early)
    fields: dict[str, Any] = {"max_running": 8, "max_batch_tokens": 16, "kv_bytes": 1 << 20}
    for drafter in (StrategyChoice("ngram"), None):
        table, clock = TuningTable(MACHINE, tmp_path), Attending({False: 7.0, True: 7.0}, 90.0)
        starting(make_device_engine, monkeypatch, table, clock, drafter=drafter, **fields)
        found = {(e.op, e.sizes["m"]) for e in table.entries}
        # Steps with drafts have 3, 5 and 6 tokens as well.
        assert ("norms and gates", 3) in found
        assert {m for op, m in found if op == "decode_attention"} == {1, 2, 4, 8}
        # Without a drafter the same is measured, so nothing again.
        assert bool(clock.asked) == (drafter is not None)
