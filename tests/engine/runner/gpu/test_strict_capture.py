"""Strict capture: fails where a CUDA graph would read stale memory."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gatewayd_engine.kernels.base import SamplingColumns
from gatewayd_engine.kernels.torch_kernels import TorchKernels
from tests.engine.runner.gpu.strict_capture import RecordedWhole, beside


@pytest.fixture
def out() -> torch.Tensor:
    """Where launches write what is read later."""
    return torch.zeros(3)


@pytest.fixture
def capture() -> RecordedWhole:
    """Notes launches."""
    return RecordedWhole()


@pytest.fixture(autouse=True)
def _as_steps_do() -> Any:
    with torch.inference_mode():
        yield


def test_memory_that_its_owner_has_let_go_is_named(capture: Any, out: torch.Tensor) -> None:
    room = SimpleNamespace(dense=torch.ones(2, 3))
    replay = capture.whole(lambda: out.copy_(room.dense[1] * 2))
    room.dense.fill_(4)
    replay()
    assert out.tolist() == [8, 8, 8]
    # Grown: another tensor has the numbers now.
    room.dense = torch.ones(4, 3)
    with pytest.raises(RuntimeError, match=r"aten\.mul.* freed: torch\.float32 of shape \[3\]"):
        replay()


def test_memory_that_is_written_to_has_to_be_there_as_well(capture: Any) -> None:
    owner = SimpleNamespace(logits=torch.zeros(2))
    replay = capture.whole(lambda: owner.logits.fill_(1))
    replay()
    assert owner.logits.tolist() == [1, 1]
    owner.logits = torch.zeros(2)
    with pytest.raises(RuntimeError, match=r"aten\.fill_"):
        replay()


def test_a_temporary_that_no_launch_refers_to_any_more_is_named(
    capture: Any, out: torch.Tensor
) -> None:
    temporary = [torch.ones(3)]
    replay = capture.whole(lambda: out.copy_(temporary.pop()))
    with pytest.raises(RuntimeError, match=r"aten\.copy_"):
        replay()


def test_what_only_the_launches_refer_to_is_kept(capture: Any, out: torch.Tensor) -> None:
    """As ``CudaCapture`` keeps it."""

    def made() -> Callable[[], None]:
        local = torch.arange(3.0)
        replay: Callable[[], None] = capture.whole(lambda: out.copy_(local + 1))
        return replay

    made()()
    assert out.tolist() == [1, 2, 3]


def test_columns_of_a_kernel_that_is_called_in_each_replay_are_addresses_too(
    capture: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside(monkeypatch, TorchKernels, "sample")
    nothing, none = torch.zeros(2), torch.zeros(2, dtype=torch.int32)
    columns = SamplingColumns(nothing, none, torch.ones(2), nothing, none.long())
    owner = SimpleNamespace(columns=columns)
    logits, chosen = torch.eye(2), torch.zeros(2, 2, dtype=torch.int32)

    def launches() -> None:
        TorchKernels().sample(logits, none, none, owner.columns, chosen)

    replay = capture.whole(launches)
    logits.copy_(torch.eye(2).flip(0))
    replay()
    assert chosen[0].tolist() == [1, 0]
    del columns
    owner.columns = None
    with pytest.raises(RuntimeError, match="sample was captured"):
        replay()


def test_what_a_capture_has_made_cannot_be_read_after_another_replay(
    capture: Any, out: torch.Tensor
) -> None:
    leaked: list[torch.Tensor] = []

    def launches() -> None:
        leaked.extend((out + 1, torch.arange(3)))
        out.add_(leaked[0])

    first, second = capture.whole(launches), capture.whole(lambda: out.zero_())
    first()
    second()
    numbers, indices = leaked[:2]
    assert numbers.isnan().all()
    with pytest.raises(IndexError):
        out[indices]
    # And begun anew it computes the same.
    first()
    assert out.tolist() == [1, 1, 1]


def test_what_one_capture_keeps_for_the_next_is_no_number(capture: Any, out: torch.Tensor) -> None:
    """A cache that is first filled while something is captured."""
    cache: list[torch.Tensor] = []

    def launches() -> None:
        if not cache:
            cache.append(torch.ones(3) * 2)
        out.copy_(cache[0] * 3)

    first, second = capture.whole(launches), capture.whole(launches)
    first()
    assert out.tolist() == [6, 6, 6]
    second()
    assert out.isnan().all()


def test_what_is_not_written_is_no_number(capture: Any, out: torch.Tensor) -> None:
    def launches() -> None:
        room = torch.empty(3)
        room[:2] = 1
        out.copy_(room)

    replay = capture.whole(launches)
    for _ in range(2):
        replay()
        assert out[:2].tolist() == [1, 1]
        assert out[2].isnan()


def test_pieces_hide_what_they_made_from_what_is_launched_between(
    capture: Any, out: torch.Tensor
) -> None:
    leaked: list[torch.Tensor] = []
    seen: list[float] = []

    def launches(between: Callable[[int], object]) -> None:
        stream = out + 1
        leaked.append(stream)
        between(0)
        out.copy_(stream * 2)

    replay = capture.pieces(launches)
    replay(lambda _: seen.append(float(leaked[0][0])))
    # The next piece has it, for the second time; what is launched in between does not.
    assert out.tolist() == [6, 6, 6]
    assert seen[0] != seen[0]
    with pytest.raises(ZeroDivisionError):
        replay(lambda _: 1 / 0)
    replay(lambda _: None)
    assert out.tolist() == [14, 14, 14]


def test_what_the_host_has_decided_stays_so(capture: Any, out: torch.Tensor) -> None:
    factor = [2.0]
    replay = capture.whole(lambda: out.add_(factor[0]))
    factor[0] = 5.0
    replay()
    assert out.tolist() == [4, 4, 4]


@pytest.mark.parametrize(
    "reads",
    [
        lambda x: x.sum().item(),
        lambda x: x.cpu(),
        lambda x: x.tolist(),
        lambda x: x if (x > 0).any() else -x,
        lambda x: x.nonzero(),
    ],
    ids=["item", "cpu", "list", "branch", "nonzero"],
)
def test_a_capture_that_reads_fails(
    reads: Callable[[torch.Tensor], object], capture: Any, out: torch.Tensor
) -> None:
    with pytest.raises(RuntimeError, match="waits for the device"):
        capture.whole(lambda: reads(out))
