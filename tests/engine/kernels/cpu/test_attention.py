"""Attention of a row: scores, softmax and sums are those of the definition in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import pytest
import torch

from gatewayd_engine.kernels.cpu.attention import Context, GroupAttention
from gatewayd_engine.kernels.cpu.step_layout import StepShape
from gatewayd_engine.kernels.llvm.builder import F32, I8, I64, KernelFunction, Pointer, Value
from tests.engine.kernels.cpu.emitting import Emitted, this_processor

LAYERS, KV_HEADS = 2, 3
LONGEST = 70
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
        qk_norm=False,
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
        first: Value,
        end: Value,
        visible: Pointer,
        drafts: Value,
        scores: Pointer,
        out: Pointer,
    ) -> None:
        context = Context(keys, table, first, end, visible, drafts)
        GroupAttention(f, shape, this_processor()).attend(
            query, context, scores, f.index(STRIDE), out
        )

    return Emitted([[F32], [F32], [I64], I64, I64, [I8], I64, [F32], [F32]], emit)


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
        keys = self.pool[0, self.layer, 0, 0, self.head]
        out = torch.full_like(self.query, math.nan)
        mask = 0 if visible is None else visible
        attention(self.case)(
            *(self.query, keys, self.table, self.first, self.end),
            *(mask, drafts, torch.full((self.case.group, STRIDE), math.nan), out),
        )
        return out

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
