"""Batch-invariant attention: bitwise equal however a sequence is split."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from gatewayd_engine.attention import batch_invariant as steady_module
from gatewayd_engine.attention import dense_contexts
from gatewayd_engine.attention.reference import ReferenceAttention
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.model.attention_shape import AttentionShape
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.step_batch import BatchDrafts, gather
from tests.engine.attention.test_reference import MAX_LEN, PAGE, Twin, diverge, wander

LENGTH = 90
SHAPES = [
    AttentionShape(1, 6, 2, 8, 0.3, softcap, (window,))
    for softcap in (None, 3.0)
    for window in (0, 9)
] + [AttentionShape(1, 6, 1, 10, 0.3, None, (0,), values_are_keys=True)]


class Sequences:
    """Rows whose queries, keys and values are the same whenever a token is computed.

    Row 0 is looked at; rows 1 and 2 begin with its first pages.
    """

    def __init__(self, shape: AttentionShape, copy_bytes: int, *, is_steady: bool = True) -> None:
        self.shape = shape
        count, each = 3, -(-MAX_LEN // PAGE)
        pool = KvPool(shape, count * each, PAGE, torch.float32, "cpu")
        self.rows = RunningBatch(count, MAX_LEN, PAGE)
        self.rows.block_table[:] = np.arange(count * each).reshape(count, each)
        self.rows.block_table[1:, : 40 // PAGE] = self.rows.block_table[0, : 40 // PAGE]
        self.attention = ReferenceAttention(shape, pool, count, copy_bytes, is_steady=is_steady)
        chance = torch.Generator().manual_seed(7)
        heads = shape.num_heads + shape.num_parts * shape.num_kv_heads
        self.numbers = torch.randn(count, MAX_LEN, heads, shape.head_dim, generator=chance)
        self.numbers[1:, :40] = self.numbers[0, :40]
        self.found = torch.full((LENGTH, shape.num_heads * shape.head_dim), torch.nan)

    def step(self, spans: dict[int, tuple[int, int]], num_drafts: int = 0) -> None:
        """Compute tokens of some rows, the last ones of each as drafts."""
        who = np.array(list(spans), np.int32)
        starts = np.array([start for start, _ in spans.values()], np.int32)
        ends = np.array([end for _, end in spans.values()], np.int32)
        drafts, settled = None, ends - starts
        if num_drafts:
            chains = {line: [0] * num_drafts for line in range(len(spans))}
            drafts = BatchDrafts.chains(len(spans), chains)
            settled = settled - num_drafts
        batch = gather(self.rows, who, who, who.astype(np.int64), starts, settled, ends, drafts)
        self.attention.plan(batch)
        at = [
            self.numbers[row, start : start + count]
            for row, start, count in zip(batch.rows, batch.starts, batch.counts, strict=True)
        ]
        sizes = [self.shape.num_heads, self.shape.num_parts * self.shape.num_kv_heads]
        query, key_value = torch.split_with_sizes(torch.cat(at), sizes, 1)
        answer = self.attention(0, query.contiguous(), key_value.contiguous())
        first = 0
        for row, start, count in zip(batch.rows, batch.starts, batch.counts, strict=True):
            if row == 0:
                self.found[start : start + count] = answer[first : first + count]
            first += count


def chunks(sequences: Sequences, sizes: Sequence[int]) -> torch.Tensor:
    """Row 0 alone, in chunks."""
    ends = [*itertools.accumulate(sizes)]
    for start, end in zip([0, *ends], ends, strict=False):
        sequences.step({0: (start, end)})
    return sequences.found


def together(sequences: Sequences) -> torch.Tensor:
    """Row 0 token by token beside others, of which one is longer."""
    sequences.step({0: (0, 41), 1: (40, 95), 2: (40, 60)})
    for i in range(41, LENGTH):
        sequences.step({0: (i, i + 1), 1: (54 + i, 55 + i), 2: (19 + i, 20 + i)})
    return sequences.found


def drafted(sequences: Sequences) -> torch.Tensor:
    """Row 0 with drafts, all of which are kept, beside another."""
    sequences.step({0: (0, 40), 1: (40, 44)})
    for i in range(40, LENGTH, 5):
        sequences.step({0: (i, i + 5), 1: (4 + i, 9 + i)}, num_drafts=4)
    return sequences.found


@pytest.fixture(autouse=True)
def _prefixes_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense_contexts, "_LEAST_GAIN", 1024)


@pytest.mark.parametrize(
    ("shape", "block"), [*zip(SHAPES, (1, 700, 1 << 20, 700, 700), strict=True)]
)
def test_it_does_not_matter_how_a_sequence_is_split(
    shape: AttentionShape, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steady_module, "_BLOCK", block)
    whole = chunks(Sequences(shape, 1 << 26), [LENGTH])
    assert whole.isfinite().all()
    for copy_bytes in (0, 1 << 26):
        for sizes in ([16] * 5 + [10], [48, 42], [33, *[1] * 20, 37]):
            assert torch.equal(chunks(Sequences(shape, copy_bytes), sizes), whole)
        assert torch.equal(together(Sequences(shape, copy_bytes)), whole)
        assert torch.equal(drafted(Sequences(shape, copy_bytes)), whole)


def test_attention_of_float32_is_not_steady() -> None:
    whole = chunks(Sequences(SHAPES[0], 0, is_steady=False), [LENGTH])
    split = chunks(Sequences(SHAPES[0], 0, is_steady=False), [33, *[1] * 57])
    assert not torch.equal(split, whole)
    torch.testing.assert_close(split, whole, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("copy_bytes", [0, 1 << 26])
def test_it_gives_what_dense_attention_gives(shape: AttentionShape, copy_bytes: int) -> None:
    wander(Twin(shape, copy_bytes, seed=4, is_steady=True), 10)
    diverge(Twin(shape, copy_bytes, seed=5, is_steady=True), 20)
