"""Reference paged attention: equals dense attention, with and without context copies."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from gatewayd_engine.attention import dense_contexts
from gatewayd_engine.attention.decode_groups import Group, GroupPlanner
from gatewayd_engine.attention.reference import ReferenceAttention
from gatewayd_engine.kv.codec import Codec
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.model.attention_shape import AttentionShape
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.step_batch import StepBatch, gather

PAGE = 4
MAX_LEN = 600


class Twin:
    """Sequences whose keys and values are known, in pages and densely."""

    def __init__(
        self,
        shape: AttentionShape,
        copy_bytes: int,
        seed: int,
        codec: Codec | None = None,
        *,
        is_steady: bool = False,
    ) -> None:
        self.shape = shape
        self.codec = codec
        self.rng = random.Random(seed)
        torch.manual_seed(seed)
        rows = 10
        num_pages = 3 * rows * -(-MAX_LEN // PAGE)
        self.pool = KvPool(shape, num_pages, PAGE, torch.float32, "cpu", codec)
        # What nobody wrote must not matter.
        written = torch.randn(*self.pool.data.shape[:-1], shape.head_dim)
        self.pool.data.copy_(written if codec is None else codec.encode(written))
        self.rows = RunningBatch(rows, MAX_LEN, PAGE)
        pages = list(range(self.pool.num_pages))
        self.rng.shuffle(pages)
        per_row = self.rows.block_table.shape[1]
        for row in range(rows):
            self.rows.block_table[row] = pages[row * per_row : (row + 1) * per_row]
        self.attention = ReferenceAttention(shape, self.pool, rows, copy_bytes, is_steady=is_steady)
        self.known: list[torch.Tensor] = [self.empty() for _ in range(rows)]
        self.ids = list(range(rows))
        self.next_id = rows

    def empty(self) -> torch.Tensor:
        shape = self.shape
        heads = shape.num_parts * shape.num_kv_heads
        return torch.zeros(shape.num_layers, 0, heads, shape.head_dim)

    def restart(self, row: int) -> None:
        """Another sequence takes the row."""
        self.known[row] = self.empty()
        self.ids[row] = self.next_id
        self.next_id += 1

    def inherit(self, row: int, parent: int, num_pages: int) -> None:
        """Another sequence takes the row; it begins with the first pages of another one."""
        self.restart(row)
        self.known[row] = self.known[parent][:, : num_pages * PAGE]
        # What the row wrote before may still be read by those that have inherited it.
        own = self.fresh_pages(len(self.rows.block_table[row]))
        self.rows.block_table[row] = own
        self.rows.block_table[row, :num_pages] = self.rows.block_table[parent, :num_pages]

    def fresh_pages(self, count: int) -> list[int]:
        """Pages that no row has."""
        used = set(self.rows.block_table.ravel().tolist())
        free = [page for page in range(self.pool.num_pages) if page not in used]
        return self.rng.sample(free, count)

    def num_tokens(self, row: int) -> int:
        """Tokens of a row's sequence."""
        return self.known[row].shape[1]

    def step(self, counts: dict[int, int]) -> None:
        """Compute tokens of some rows and compare each layer."""
        shape = self.shape
        who = np.array(list(counts), np.int32)
        starts = np.array([self.num_tokens(r) for r in counts], np.int32)
        count = np.array(list(counts.values()), np.int32)
        ids = np.array([self.ids[r] for r in counts], np.int64)
        batch = gather(self.rows, who, who, ids, starts, count, starts + count)
        self.attention.plan(batch)
        total = len(batch.ids)
        heads = shape.num_parts * shape.num_kv_heads
        news = torch.randn(shape.num_layers, total, heads, shape.head_dim)
        ends = (batch.last + 1).tolist()
        spans = [(e - int(c), e) for e, c in zip(ends, batch.counts, strict=True)]
        for (first, end), row in zip(spans, batch.rows.tolist(), strict=True):
            kept = news[:, first:end]
            if self.codec is not None:
                kept = self.codec.decode(self.codec.encode(kept))
            self.known[row] = torch.cat((self.known[row], kept), 1)
        for layer in range(shape.num_layers):
            query = torch.randn(total, shape.num_heads, shape.head_dim)
            got = self.attention(layer, query, news[layer]).view(total, shape.num_heads, -1)
            for (first, end), row in zip(spans, batch.rows.tolist(), strict=True):
                wanted = self.dense(layer, query[first:end], row)
                torch.testing.assert_close(got[first:end], wanted, atol=2e-5, rtol=1e-4)

    def weigh(self, layer: int, scores: torch.Tensor, row: int) -> None:
        """Change scores, shape ``[num_heads, queries, tokens]``, in place."""

    def dense(self, layer: int, query: torch.Tensor, row: int) -> torch.Tensor:
        """Attention of the last queries of one sequence, by the definition."""
        shape, kv = self.shape, self.known[row][layer]
        group = shape.num_heads // shape.num_kv_heads
        parts = [part.repeat_interleave(group, 1) for part in kv.chunk(shape.num_parts, 1)]
        k, v = parts[0], parts[-1]
        scores = torch.einsum("qhd,khd->hqk", query, k) * shape.scale
        if shape.softcap:
            scores = shape.softcap * torch.tanh(scores / shape.softcap)
        self.weigh(layer, scores, row)
        at = torch.arange(len(kv))
        now = torch.arange(len(kv) - len(query), len(kv)).unsqueeze(-1)
        hidden = at > now
        window = shape.windows[layer]
        if window and shape.chunked:
            hidden |= at // window != now // window
        elif window:
            hidden |= at <= now - window
        weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), -1)
        return torch.einsum("hqk,khd->qhd", weights, v)


def wander(twin: Twin, num_steps: int) -> None:
    """Steps in which sequences begin, go on and end, in chunks and token by token."""
    rng = twin.rng
    active = {0, 1, 2}
    for _ in range(num_steps):
        if rng.random() < 0.3:
            row = rng.randrange(10)
            if row in active and rng.random() < 0.5:
                active.discard(row)  # preempted or finished
                if rng.random() < 0.7:
                    twin.restart(row)
            else:
                active.add(row)
        counts = {}
        for row in rng.sample(sorted(active), len(active)):
            room = MAX_LEN - twin.num_tokens(row)
            if twin.num_tokens(row) == 0:
                counts[row] = rng.choice([1, 3, 40, 150, 290])
            elif rng.random() < 0.1:
                counts[row] = min(room, rng.choice([2, 17]))
            elif rng.random() < 0.9:
                counts[row] = 1
            if room < 1:
                twin.restart(row)
                counts[row] = 5
        if counts:
            twin.step(counts)


@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("windows", [(0, 0), (0, 9)])
@pytest.mark.parametrize("copy_bytes", [0, 1 << 26, 300_000])
def test_pages_give_what_dense_attention_gives(
    softcap: float | None, windows: tuple[int, ...], copy_bytes: int
) -> None:
    shape = AttentionShape(2, 6, 2, 8, 0.3, softcap, windows)
    wander(Twin(shape, copy_bytes, seed=1), 36)


@pytest.mark.parametrize("windows", [(0, 9), (16, 64)])
@pytest.mark.parametrize("copy_bytes", [0, 1 << 26, 300_000])
def test_layers_attend_within_chunks(windows: tuple[int, ...], copy_bytes: int) -> None:
    shape = AttentionShape(2, 6, 2, 8, 0.3, None, windows, chunked=True)
    wander(Twin(shape, copy_bytes, seed=6), 36)


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("copy_bytes", [0, 1 << 26, 200_000])
def test_keys_may_be_the_values_as_well(kv_heads: int, copy_bytes: int) -> None:
    shape = AttentionShape(2, 6, kv_heads, 10, 0.3, None, (0, 9), values_are_keys=True)
    twin = Twin(shape, copy_bytes, seed=5)
    assert twin.pool.data[0].nbytes == 2 * PAGE * kv_heads * 10 * 4
    wander(twin, 36)


def diverge(twin: Twin, num_steps: int) -> None:
    """Steps of sequences that begin with pages of others."""
    rng = twin.rng
    twin.step({0: 70, 1: 40})
    active = {0, 1}
    for _ in range(num_steps):
        if rng.random() < 0.3:
            row = rng.randrange(10)
            if row in active and len(active) > 2:
                active.discard(row)
            elif row not in active:
                parent = rng.choice(sorted(active))
                full = twin.known[parent].shape[1] // PAGE
                twin.inherit(row, parent, rng.choice([full, full, full // 2, 0]))
                active.add(row)
                if twin.known[row].shape[1] == 0:
                    twin.step({row: 30})
        if rng.random() < 0.5:
            twin.step(dict.fromkeys(active, 1))
        else:
            some = rng.sample(sorted(active), rng.randint(1, len(active)))
            twin.step({row: rng.choice([1, 1, 1, 1, 5]) for row in some})


def test_a_step_that_is_done_again_gives_the_same() -> None:
    shape = AttentionShape(1, 2, 1, 8, 0.3, None, (0,))
    twin = Twin(shape, 1 << 26, seed=2)
    twin.step({0: 5, 1: 9})
    twin.step({0: 1, 1: 1})
    kept = [known.clone() for known in twin.known]
    twin.step({0: 1, 1: 1})
    twin.known = kept  # the step failed after attention and is repeated, alone
    twin.step({1: 1})
    twin.step({0: 1})
    twin.step({0: 1, 1: 1})


@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("window", [0, 9])
@pytest.mark.parametrize("copy_bytes", [1 << 26, 400_000])
def test_what_sequences_share_is_attended_as_if_it_were_their_own(
    softcap: float | None, window: int, copy_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A page of this shape has 1 KiB: two lines that share four pages are worth it.
    monkeypatch.setattr(dense_contexts, "_LEAST_GAIN", 4096)
    planned: list[Group] = []
    plan = GroupPlanner.plan

    def observed(self: GroupPlanner, batch: StepBatch) -> list[Group]:
        planned.extend(groups := plan(self, batch))
        return groups

    monkeypatch.setattr(GroupPlanner, "plan", observed)
    shape = AttentionShape(2, 6, 2, 8, 0.3, softcap, (window, window))
    diverge(Twin(shape, copy_bytes, seed=3), 120)
    shared = [group for group in planned if group.prefix is not None]
    assert bool(shared) == (window == 0)
    if shared:
        assert max(group.count for group in shared) > 2
        assert any(group.prefix is None for group in planned)
