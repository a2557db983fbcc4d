"""FlashInfer adapter: equals dense attention, over the stand-in."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gatewayd_engine.attention.flashinfer.workspaces import INTS, device_bytes
from gatewayd_engine.attention.gpu_api import CapturedAttention, CapturingAttention
from gatewayd_engine.attention.paged import PagedAttention
from gatewayd_engine.model.attention_shape import AttentionShape
from tests.engine.attention import fake_flashinfer
from tests.engine.attention.steps import Sequences, Static, some_counts

SHAPE = AttentionShape(2, 6, 2, 8, 0.3, None, (0, 0))


@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("windows", [(0, 0), (9, 0), (1, 5)])
def test_steps_give_what_the_definition_gives(
    flashinfer: SimpleNamespace, softcap: float | None, windows: tuple[int, ...]
) -> None:
    sequences = Sequences(replace(SHAPE, softcap=softcap, windows=windows), seed=1)
    attention = flashinfer.FlashAttention(sequences.shape, sequences.pool, sequences.append)
    for row in range(5):
        sequences.fill(row, [1, 4, 5, 33, 80][row])
    for _ in range(14):
        sequences.check(attention, some_counts(sequences))


@pytest.mark.parametrize(
    ("name", "element"),
    [
        ("FlashAttention", torch.float8_e4m3fn),
        ("CascadeAttention", torch.float8_e5m2),
        ("PagedAttention", torch.float8_e4m3fn),
    ],
)
def test_pages_of_floats_of_8_bits_are_read_as_what_they_hold(
    flashinfer: SimpleNamespace, name: str, element: torch.dtype
) -> None:
    sequences = Sequences(replace(SHAPE, softcap=3.0, windows=(9, 0)), seed=1, element=element)
    assert sequences.pool.data.dtype == element
    make = getattr(flashinfer, name, PagedAttention)
    attention = make(sequences.shape, sequences.pool, sequences.append)
    for row in range(5):
        sequences.fill(row, [1, 4, 5, 13, 30][row])
    for _ in range(3):
        sequences.check(attention, some_counts(sequences))


@pytest.mark.parametrize(("windows", "kinds"), [((0, 0), 1), ((9, 9), 1), ((9, 0), 2)])
def test_a_step_is_planned_once_for_all_layers_of_a_window(
    flashinfer: SimpleNamespace, windows: tuple[int, ...], kinds: int
) -> None:
    sequences = Sequences(replace(SHAPE, windows=windows))
    attention = flashinfer.FlashAttention(sequences.shape, sequences.pool, sequences.append)
    sequences.check(attention, {0: 7, 1: 2})
    assert len(flashinfer.plans) == kinds
    sequences.check(attention, {0: 1, 1: 1})
    assert len(flashinfer.plans) == 2 * kinds
    sequences.check(attention, {0: 1, 2: 3})
    assert len(flashinfer.plans) == 4 * kinds


@pytest.mark.parametrize("name", ["FlashAttention", "CascadeAttention", "PagedAttention"])
def test_answers_are_written_where_they_are_wanted(flashinfer: SimpleNamespace, name: str) -> None:
    sequences = Sequences(SHAPE)
    make = getattr(flashinfer, name, PagedAttention)
    attention = make(sequences.shape, sequences.pool, sequences.append)
    room = torch.full((9, 6, 8), 7.0)
    for counts, num_tokens in (({0: 1, 1: 1}, 2), ({0: 1, 2: 3, 3: 4}, 8), ({4: 5}, 5)):
        sequences.check(attention, counts, out=room[:num_tokens])
        assert room[8].eq(7.0).all()


def check(
    static: Static,
    attends: CapturedAttention | Sequence[CapturedAttention],
    rows: list[int],
    shared_pages: int = 0,
) -> CapturedAttention:
    """Replay a step by the first that suits it, compare each layer, and tell which it was."""
    before = [tensor.clone() for tensor in static.tensors]
    host, heads, wanted = static.prepare(rows, shared_pages)
    kinds = [attends] if isinstance(attends, CapturedAttention) else attends
    attend = next(kind for kind in kinds if kind.suits(host))
    attend.plan(host)
    for tensor, kept in zip(static.tensors, before, strict=True):
        assert torch.equal(tensor, kept)  # only the caller writes to them
    static.write()
    for layer, want in enumerate(wanted):
        got = attend(layer, heads[layer])[: len(rows)]
        torch.testing.assert_close(got.double(), want, atol=2e-5, rtol=1e-4)
    return attend


@pytest.mark.parametrize("windows", [(0, 0), (0, 5)])
def test_captured_steps_read_the_same_tensors_each_time(
    flashinfer: SimpleNamespace, windows: tuple[int, ...]
) -> None:
    sequences = Sequences(replace(SHAPE, windows=windows), seed=3)
    attention = flashinfer.FlashAttention(sequences.shape, sequences.pool, sequences.append)
    assert isinstance(attention, CapturingAttention)
    large, small = Static(sequences, 6), Static(sequences, 2)
    (of_six,), (of_two,) = (attention.captured(static.inputs) for static in (large, small))
    for row, length in enumerate([70, 3, 4, 11]):
        sequences.fill(row, length)
    for _ in range(4):
        check(large, of_six, [0, 1, 2, 3])
        check(small, of_two, [1, 0])
        sequences.check(attention, {0: 1, 3: 1, 4: 2})
        check(large, of_six, [3, 1, 0])
        check(small, of_two, [2])


def test_captured_steps_that_fill_the_chip_split_no_context(
    flashinfer: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["gatewayd_engine.attention.flashinfer.wrappers"]
    monkeypatch.setattr(module, "num_multiprocessors", lambda device: 3)
    sequences = Sequences(SHAPE)
    attention = flashinfer.FlashAttention(sequences.shape, sequences.pool, sequences.append)
    found = []
    for size in (1, 3, 4):
        static = Static(sequences, size)
        (attend,) = attention.captured(static.inputs)
        for rows in ([0], list(range(size))):
            check(static, attend, rows)
            found.append((size, flashinfer.plans[-1].disable_split_kv))
    # Two key heads: from 4 lines on there are more than 6 programs.
    assert found == [(size, size == 4) for size in (1, 3, 4) for _ in range(2)]
    sequences.check(attention, dict.fromkeys(range(8), 1))
    assert flashinfer.plans[-1].disable_split_kv is False


class Slow:
    """Pages that are on their way."""

    def __init__(self) -> None:
        self.pending = True
        self.waited: list[object] = []

    def wait_for(self, layer: int) -> None:
        self.waited.append(layer)

    def wait(self) -> None:
        self.waited.append("all")
        self.pending = False


def test_layers_wait_for_their_own_pages_and_a_replay_for_all(flashinfer: SimpleNamespace) -> None:
    sequences = Sequences(SHAPE)
    attention = flashinfer.FlashAttention(sequences.shape, sequences.pool, sequences.append)
    static = Static(sequences, 2)
    (attend,) = attention.captured(static.inputs)
    slow = Slow()
    sequences.pool.transfers = slow  # type: ignore[assignment]
    sequences.check(attention, {0: 1, 1: 5})
    assert slow.waited == [0, 1]
    check(static, attend, [0, 1])
    assert slow.waited == [0, 1, "all"]


@pytest.mark.parametrize(
    ("capability", "head_dim", "element", "backend"),
    [
        ((9, 0), 128, torch.bfloat16, "fa3"),
        ((9, 0), 64, torch.bfloat16, "fa2"),
        ((8, 0), 128, torch.bfloat16, "fa2"),
        ((10, 0), 128, torch.bfloat16, "fa2"),
        ((9, 0), 128, torch.float8_e4m3fn, "fa2"),
    ],
)
def test_chunks_are_attended_by_what_was_measured_to_be_fastest(
    flashinfer: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int],
    head_dim: int,
    element: torch.dtype,
    backend: str,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    data = SimpleNamespace(is_cuda=True, device="cuda", dtype=element)
    pool = SimpleNamespace(data=data, dtype=torch.bfloat16)
    assert flashinfer.prefill_backend(replace(SHAPE, head_dim=head_dim), pool) == backend


def test_a_plan_that_fails_when_it_is_queued_is_waited_for_too(
    flashinfer: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequences = Sequences(SHAPE)
    attention = flashinfer.FlashAttention(sequences.shape, sequences.pool, sequences.append)
    wrapper = type(attention._decode[0].wrapper)
    plan, fails = wrapper.plan, False

    def failing(self: object, *args: object, **named: object) -> None:
        plan(self, *args, **named)
        if fails:
            raise RuntimeError("no more")

    monkeypatch.setattr(wrapper, "plan", failing)
    turns = len(attention._wrappers._staging)
    for turn in range(2 * turns):
        if fails := turn == turns - 1:
            with pytest.raises(RuntimeError, match="no more"):
                sequences.check(attention, {1: 1})
        else:
            # In the end in the buffer of the plan that failed, whose copy is still to come.
            sequences.check(attention, {0: 1})


@pytest.mark.parametrize("windows", [(0, 0), (9, 0)])
def test_workspaces_take_what_is_set_aside_for_them(
    flashinfer: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, windows: tuple[int, ...]
) -> None:
    monkeypatch.setattr(flashinfer.flash, "prefill_backend", lambda shape, pool: "fa3")
    made: list[object] = []
    for name in ("DecodeWithPaged", "PrefillWithPaged", "PrefillWithRagged"):
        wrapper = getattr(fake_flashinfer, f"Batch{name}KVCacheWrapper")
        begin = wrapper.__init__

        def noted(self: Any, *args: Any, begin: Any = begin, **named: Any) -> None:
            made.append(self)
            begin(self, *args, **named)

        monkeypatch.setattr(wrapper, "__init__", noted)
    sequences = Sequences(replace(SHAPE, windows=windows))
    attention = flashinfer.CascadeAttention(sequences.shape, sequences.pool, sequences.append)
    of_wrappers = attention._wrappers
    ints = [*of_wrappers._ints.values(), *made]
    # One more while a step is captured, whose wrapper is given one of these.
    attention.captured(Static(sequences, 2).inputs)
    taken = of_wrappers._floats.nbytes + INTS * (len(ints) + 1)
    # With windows nothing that is cached is merged.
    assert device_bytes(len(set(windows))) == taken + INTS * (windows != (0, 0))
    assert {buffer.nbytes for buffer in of_wrappers._ints.values()} == {INTS}
