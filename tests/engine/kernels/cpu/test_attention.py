"""Attention of rows: scores, softmax and sums are those of the definition in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import pytest
import torch

from gatewayd_engine.kernels.cpu import attention as attention_module
from gatewayd_engine.kernels.cpu.attention import Block, GroupAttention
from gatewayd_engine.kernels.cpu.step_layout import StepShape
from gatewayd_engine.kernels.llvm.builder import F32, I8, I64, KernelFunction, Pointer, Value
from tests.engine.kernels.cpu.emitting import Emitted, this_processor

LAYERS, KV_HEADS = 2, 3
LONGEST = 140
STRIDE = LONGEST + 32


@dataclass(frozen=True)
class Case:
    """A KV head of so many query heads, and its pages."""

    group: int
    dim: int
    page_size: int
    softcap: float | None = None
    scale: float = 0.2


CASES = [
    Case(1, 8, 8),
    Case(1, 128, 16),
    Case(2, 16, 16, softcap=2.0),
    Case(3, 24, 32),
    Case(4, 64, 8, scale=2.0),
    Case(4, 32, 32, softcap=30.0),
    Case(5, 128, 16, softcap=5.0),
    Case(5, 40, 8),
    Case(8, 64, 16),
    Case(2, 256, 16),
]


@cache
def attention(case: Case) -> Emitted:
    shape = StepShape(
        num_layers=LAYERS,
        hidden=64,
        num_heads=case.group * KV_HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=case.dim,
        intermediate=64,
        rotary_dim=case.dim,
        norm_eps=1e-5,
        scale=case.scale,
        softcap=case.softcap,
        activation="silu",
        qk_norm=None,
        pre_norms=True,
        post_norms=False,
        page_size=case.page_size,
        vocab=64,
        logit_softcap=None,
    )
    if not shape.fits(this_processor().lanes):
        pytest.skip("the sizes are no multiples of a vector")

    def emit(
        f: KernelFunction,
        query: Pointer,
        keys: Pointer,
        table: Pointer,
        count: Value,
        firsts: Pointer,
        ends: Pointer,
        visible: Pointer,
        drafts: Value,
        scores: Pointer,
        out: Pointer,
    ) -> None:
        size = case.group * case.dim

        def row(index: Value) -> attention_module.Row:
            return attention_module.Row(
                query=query + index * size,
                first=firsts[index],
                end=ends[index],
                visible=visible,
                drafts=drafts,
                scores=scores + index * (case.group * STRIDE),
                out=out + index * size,
            )

        block = Block(keys, table, count, row, f.index(STRIDE))
        GroupAttention(f, shape, this_processor()).attend(block)

    kinds = [[F32], [F32], [I64], I64, [I64], [I64], [I8], I64, [F32], [F32]]
    return Emitted(kinds, emit)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


class Row:
    """A query and its paged context; what it does not attend to is NaN."""

    def __init__(self, case: Case, first: int, end: int, seed: int = 0) -> None:
        self.case, self.first, self.end = case, first, end
        draw = torch.Generator().manual_seed(seed)
        self.query = torch.randn(case.group, case.dim, generator=draw)
        self.keys, self.values = torch.randn(2, end - first, case.dim, generator=draw)
        pages = -(-LONGEST // case.page_size)
        self.table = torch.randperm(pages + 2, generator=draw)[:pages]
        shape = pages + 2, LAYERS, 2, case.page_size, KV_HEADS, case.dim
        self.pool = torch.full(shape, math.nan)
        self.layer, self.head = 1, 2
        for slot in range(first, end):
            page, within = self.table[slot // case.page_size], slot % case.page_size
            for half, numbers in enumerate((self.keys, self.values)):
                self.pool[page, self.layer, half, within, self.head] = numbers[slot - first]

    def attended(self, visible: torch.Tensor | None = None, drafts: int = 0) -> torch.Tensor:
        """Attend, with the compiled code."""
        return attended(self, self.query[None], [(self.first, self.end)], visible, drafts)[0]

    def expected(self, visible: torch.Tensor | None = None, drafts: int = 0) -> torch.Tensor:
        """Attend, by the definition."""
        scores = self.query.double() @ self.keys.double().t() * self.case.scale
        if self.case.softcap is not None:
            scores = self.case.softcap * torch.tanh(scores / self.case.softcap)
        for slot in range(max(drafts, self.first), self.end):
            if visible is not None and not visible[slot - drafts]:
                scores[:, slot - self.first] = -math.inf
        expected: torch.Tensor = scores.softmax(-1) @ self.values.double()
        return expected


def attended(
    context: Row,
    queries: torch.Tensor,
    ranges: list[tuple[int, int]],
    visible: torch.Tensor | None = None,
    drafts: int = 0,
) -> torch.Tensor:
    """Attend with a block of rows ``[n, group, dim]`` to ranges of a row's context."""
    keys = context.pool[0, context.layer, 0, 0, context.head]
    out = torch.full_like(queries, math.nan)
    firsts, ends = torch.tensor(ranges).t().contiguous()
    attention(context.case)(
        *(queries, keys, context.table, len(queries), firsts, ends),
        *(0 if visible is None else visible, drafts),
        *(torch.full((len(queries), context.case.group, STRIDE), math.nan), out),
    )
    return out


def close(made: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(made.double(), expected, atol=5e-6, rtol=1e-5)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_all_of_a_context_is_attended_to(case: Case) -> None:
    for end in range(1, LONGEST + 1):
        row = Row(case, 0, end, seed=end)
        close(row.attended(), row.expected())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_window_is_attended_to(case: Case) -> None:
    for end in range(1, LONGEST + 1, 3):
        for first in {0, end // 3, max(0, end - 9), end - 1}:
            row = Row(case, first, end, seed=end)
            close(row.attended(), row.expected())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_drafts_of_other_branches_are_masked(case: Case) -> None:
    draw = torch.Generator().manual_seed(0)
    for end in range(1, LONGEST + 1, 2):
        drafts = max(0, end - 1 - end % 7)
        first = max(0, end - 5) if end % 3 == 0 else 0
        row = Row(case, first, end, seed=end)
        visible = torch.randint(2, (end - drafts,), generator=draw, dtype=torch.uint8)
        visible[-1] = 1
        close(row.attended(visible, drafts), row.expected(visible, drafts))
        # Nothing of a prefill chunk is masked: its masks begin behind its own slot.
        close(row.attended(torch.zeros(1, dtype=torch.uint8), end), row.expected())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rows_of_a_block_have_the_bits_of_a_row_alone(case: Case) -> None:
    for count, last in ((2, 2), (5, 9), (16, 66), (16, LONGEST)):
        context = Row(case, 0, last, seed=last)
        queries = numbers(count, case.group, case.dim)
        ends = [last - count + 1 + i for i in range(count)]
        for window in (None, 1, 5, 20):
            ranges = [(max(0, end - window) if window else 0, end) for end in ends]
            made = attended(context, queries, ranges)
            for i, (first, end) in enumerate(ranges):
                alone = attended(context, queries[i : i + 1], [(first, end)])[0]
                assert torch.equal(made[i], alone), (count, last, window, i)


def test_rows_of_a_block_may_be_in_any_order() -> None:
    """Branches of a tree of drafts have windows by depth, not by slot."""
    context = Row(CASES[4], 0, LONGEST)
    queries = numbers(4, 4, 64)
    ranges = [(40, 70), (3, 12), (0, 1), (69, 70)]
    made = attended(context, queries, ranges)
    for i, each in enumerate(ranges):
        assert torch.equal(made[i], attended(context, queries[i : i + 1], [each])[0])


def test_nan_in_a_key_reaches_the_result() -> None:
    for place in range(40):
        row = Row(CASES[2], 0, 40)
        page, within = row.table[place // 16], place % 16
        row.pool[page, row.layer, 0, within, row.head, 5] = math.nan
        assert row.attended().isnan().all()


def test_large_scores_do_not_overflow() -> None:
    row = Row(CASES[0], 0, 40)
    row.query *= 1e4
    close(row.attended(), row.expected())
