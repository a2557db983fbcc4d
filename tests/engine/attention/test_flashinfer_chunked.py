"""FlashInfer adapter of layers that attend within chunks: equals dense attention."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gatewayd_engine.attention.step_inputs import HostPlan
from gatewayd_engine.attention.triton_decode import DecodeAttention, DecodeKernels
from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.model.attention_shape import AttentionShape
from tests.engine.attention.steps import Sequences, Static, some_counts
from tests.engine.attention.test_flashinfer import check


@pytest.mark.parametrize("windows", [(0, 8), (8, 40), (4, 4)])
def test_steps_give_what_the_definition_gives(
    flashinfer: SimpleNamespace, windows: tuple[int, ...]
) -> None:
    sequences = Sequences(AttentionShape(2, 6, 2, 8, 0.3, None, windows, chunked=True), seed=1)
    attention = flashinfer.ChunkedAttention(sequences.shape, sequences.pool, sequences.append)
    for row in range(6):
        sequences.fill(row, [1, 4, 7, 8, 33, 80][row])
    for _ in range(14):
        sequences.check(attention, some_counts(sequences))


def test_a_chunk_begins_within_a_prompt_and_at_its_edges(flashinfer: SimpleNamespace) -> None:
    sequences = Sequences(AttentionShape(1, 2, 1, 8, 0.3, None, (8,), chunked=True), seed=1)
    attention = flashinfer.ChunkedAttention(sequences.shape, sequences.pool, sequences.append)
    for counts in ({0: 8}, {0: 1}, {0: 7, 1: 25}, {0: 1, 1: 8}, {1: 64, 2: 7}, {2: 1}, {2: 1}):
        sequences.check(attention, counts)


def test_prefill_chunks_have_the_backend_of_other_layers(
    flashinfer: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    wrappers = flashinfer.flash.Wrappers
    prefill = wrappers.prefill

    def noted(self: Any, backend: str) -> Any:
        made.append(backend)
        return prefill(self, backend)

    monkeypatch.setattr(wrappers, "prefill", noted)
    monkeypatch.setattr(flashinfer.flash, "prefill_backend", lambda *of: "fa3")
    sequences = Sequences(AttentionShape(2, 6, 2, 8, 0.3, None, (0, 8), chunked=True), seed=1)
    attention = flashinfer.ChunkedAttention(sequences.shape, sequences.pool, sequences.append)
    # Of all layers' prefill chunks, of their cached tokens, of sequences that decode, and of chunks
    # of attention.
    assert made == ["fa3", "fa3", "fa2", "fa3"]
    for counts in ({0: 8}, {0: 1, 1: 13}, {0: 1, 1: 1, 2: 25}, {0: 1, 1: 9}):
        sequences.check(attention, counts)


def test_captured_steps_are_the_built_in_kernels(flashinfer: SimpleNamespace) -> None:
    sequences = Sequences(AttentionShape(2, 6, 2, 8, 0.3, None, (0, 8), chunked=True), seed=3)
    shape, pool, append = sequences.shape, sequences.pool, sequences.append
    other = flashinfer.ChunkedAttention(shape, pool, append)
    own = DecodeKernels(shape, pool, append, TorchKernels(), 4, 240)
    static = Static(sequences, 4)
    captured = DecodeAttention(own, other).captured(static.inputs)
    for row, length in enumerate([70, 7, 8, 15]):
        sequences.fill(row, length)
    for _ in range(9):
        check(static, captured, [0, 1, 2, 3])


def test_contexts_are_split_where_chunks_begin(flashinfer: SimpleNamespace) -> None:
    from gatewayd_engine.attention.flashinfer.chunked import split_at_chunks

    # Contexts of 3, 10 and 8 tokens in pages of 2, of which 1, 6 and 3 are new; chunks of 4.
    host = HostPlan(
        num_decode=1,
        query_indptr=torch.tensor([0, 1, 7, 10]).int(),
        page_indptr=torch.tensor([0, 2, 7, 11]).int(),
        last_page_len=torch.tensor([1, 2, 2]).int(),
    )
    found = split_at_chunks(host, 1, 3, 4, 2)
    assert found.query_indptr.tolist() == [0, 0, 4, 6, 6, 9]
    assert found.page_indptr.tolist() == [2, 4, 6, 7, 9, 11]
    assert found.last_page_len.tolist() == [2, 2, 2, 2, 2]
    assert {each.dtype for each in found} == {torch.int32}
