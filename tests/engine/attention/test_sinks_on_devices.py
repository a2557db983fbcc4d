"""Attention sinks on devices: every backend gives what the definition gives."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from gatewayd_engine.attention.gpu_api import DeviceAttention
from gatewayd_engine.attention.paged import PagedAttention
from gatewayd_engine.attention.sinks import SinkScaling
from gatewayd_engine.attention.triton_decode import DecodeAttention, DecodeKernels
from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.model.attention_shape import AttentionShape
from tests.engine.attention.steps import Sequences, Static, some_counts
from tests.engine.attention.test_flashinfer import check

SHAPE = AttentionShape(2, 6, 2, 8, 0.3, None, (5, 0))


def made(name: str, flashinfer: SimpleNamespace, sequences: Sequences) -> DeviceAttention:
    """A backend over sequences that have sinks."""
    of = sequences.shape, sequences.pool, sequences.append
    assert sequences.sinks is not None
    own = DecodeKernels(*of, TorchKernels(), 8, 240, sequences.sinks)
    scaling = SinkScaling(TorchKernels(), sequences.sinks)
    match name:
        case "paged":
            return PagedAttention(*of, sinks=sequences.sinks)
        case "own":
            return DecodeAttention(own, PagedAttention(*of, own, sequences.sinks))
        case "flash":
            return DecodeAttention(own, flashinfer.FlashAttention(*of, scaling))
        case "chunked":
            return DecodeAttention(own, flashinfer.ChunkedAttention(*of, scaling))
        case _:
            cascade = flashinfer.CascadeAttention(*of, least_saved=8, sinks=scaling)
            return DecodeAttention(own, cascade, 8)


@pytest.mark.parametrize("name", ["paged", "own", "flash", "cascade"])
@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("windows", [(5, 0), (0, 0)])
def test_steps_give_what_the_definition_gives(
    flashinfer: SimpleNamespace, name: str, softcap: float | None, windows: tuple[int, ...]
) -> None:
    shape = replace(SHAPE, softcap=softcap, windows=windows)
    sequences = Sequences(shape, seed=1, has_sinks=True)
    attention = made(name, flashinfer, sequences)
    for row in range(5):
        sequences.fill(row, [1, 4, 5, 33, 80][row])
    for _ in range(8):
        sequences.check(attention, some_counts(sequences))


@pytest.mark.parametrize("name", ["paged", "own", "chunked"])
@pytest.mark.parametrize("windows", [(8, 0), (4, 12)])
def test_steps_within_chunks_give_what_the_definition_gives(
    flashinfer: SimpleNamespace, name: str, windows: tuple[int, ...]
) -> None:
    sequences = Sequences(replace(SHAPE, windows=windows, chunked=True), seed=2, has_sinks=True)
    attention = made(name, flashinfer, sequences)
    for row in range(5):
        sequences.fill(row, [1, 7, 8, 33, 80][row])
    for _ in range(8):
        sequences.check(attention, some_counts(sequences))


@pytest.mark.parametrize("name", ["own", "flash"])
def test_captured_steps_give_what_the_definition_gives(
    flashinfer: SimpleNamespace, name: str
) -> None:
    sequences = Sequences(SHAPE, seed=3, has_sinks=True)
    attention = made(name, flashinfer, sequences)
    static = Static(sequences, 4)
    assert isinstance(attention, DecodeAttention)
    kinds = attention.captured(static.inputs)
    for row, length in enumerate([70, 3, 4, 11]):
        sequences.fill(row, length)
    for rows in ([0, 1, 2, 3], [2], [3, 1]):
        check(static, kinds, rows)


@pytest.mark.parametrize("name", ["own", "cascade"])
def test_a_shared_prefix_is_merged_before_the_sink_takes_its_part(
    flashinfer: SimpleNamespace, name: str
) -> None:
    sequences = Sequences(replace(SHAPE, windows=(0, 0)), seed=4, has_sinks=True)
    attention = made(name, flashinfer, sequences)
    sequences.fill(0, 21)
    for row in (1, 2):
        sequences.share(row, 0, 5)
        sequences.fill(row, row)
    before = len(flashinfer.runs)
    sequences.check(attention, {0: 1, 1: 1, 2: 1}, shared=5)
    # Each of the two parts of each layer by ``run``.
    assert len(flashinfer.runs) - before == (4 if name == "cascade" else 0)
    if name == "cascade":
        static = Static(sequences, 3)
        assert isinstance(attention, DecodeAttention)
        check(static, attention.captured(static.inputs), [0, 1, 2], shared_pages=5)


@pytest.mark.parametrize("least_merged", [0, 1 << 20])
def test_chunks_beside_cached_tokens_are_merged_before(
    flashinfer: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, least_merged: int
) -> None:
    monkeypatch.setattr(flashinfer.flash, "prefill_backend", lambda *of: "fa3")
    sequences = Sequences(replace(SHAPE, windows=(0, 0)), seed=5, has_sinks=True)
    assert sequences.sinks is not None
    attention = flashinfer.FlashAttention(
        *(sequences.shape, sequences.pool, sequences.append),
        SinkScaling(TorchKernels(), sequences.sinks),
    )
    attention._ragged._least_merged = least_merged
    sequences.check(attention, {0: 1, 1: 9, 2: 5})
    sequences.check(attention, {0: 1, 1: 9, 2: 5})


def test_a_row_that_sees_nothing_stays_zero() -> None:
    out, lse = torch.zeros(1, 2, 4), torch.full((1, 2), -torch.inf)
    TorchKernels().scale_by_sinks(out, lse, torch.zeros(2))
    assert torch.equal(out, torch.zeros(1, 2, 4))
