"""MoE kernels: two implementations compared, for any shape on any device."""

from __future__ import annotations

import torch

from gatewayd_engine.kernels.base import Kernels
from gatewayd_engine.kernels.experts.base import ClampedAct, Form, RowCodes, Visits
from gatewayd_engine.kernels.quantized.base import Activation, QuantizedRows
from gatewayd_engine.kernels.quantized.block_scales import GROUP, blocks
from gatewayd_engine.kernels.quantized.packing import PackedWeight, unpack
from gatewayd_engine.model.linears.expert_stacks import Stack
from tests.engine.kernels.blocked import in_blocks
from tests.engine.kernels.checks import TWIN, close, packed, random

CPU = torch.device("cpu")
CODES = {"int8 rows": torch.int8, "e4m3 rows": torch.float8_e4m3fn, "blocks": torch.float8_e4m3fn}


def form(kind: str, number: int, rows: int, columns: int, groups: int) -> Form:
    """One expert's matrix, another one for each number."""
    scale = columns**-0.5
    numbers = random(rows, columns, dtype=torch.float32, device=CPU, scale=scale).roll(number, 0)
    if kind in ("float32", "bfloat16"):
        kept: torch.Tensor = numbers.to(getattr(torch, kind))
        return kept
    if kind in ("int8 rows", "e4m3 rows"):
        made = TWIN.quantize(numbers, CODES[kind])
        return RowCodes(made.codes[:rows], made.scales.flatten())
    if kind == "blocks":
        made_blocks = blocks(in_blocks(rows, columns, 128 if rows % 256 == 0 else 32))
        assert made_blocks is not None
        codes = made_blocks.codes.view(torch.uint8).roll(number, 0).view(torch.float8_e4m3fn)
        return made_blocks._replace(codes=codes, scales=made_blocks.scales * (scale / 25))
    one = packed(kind, rows, columns, groups, CPU)
    times = 1 + number / 8
    return one._replace(
        words=one.words.roll(number, 1),
        scales=one.scales * times,
        offsets=None if one.offsets is None else one.offsets * times,
        order=None if one.order is None else one.order.roll(16 * number),
    )


def stack(
    kernels: Kernels, device: torch.device, kind: str, experts: int, rows: int, columns: int,
    groups: int = 1,
) -> Stack:  # fmt: skip
    def on_device(number: int) -> Form:
        made = form(kind, number, rows, columns, groups)
        if isinstance(made, torch.Tensor):
            return made.to(device)
        parts = (each.to(device) if isinstance(each, torch.Tensor) else each for each in made)
        moved: Form = type(made)(*parts)  # type: ignore[arg-type]
        return moved

    made = Stack(on_device(0), experts, rows, columns, kernels)
    for number in range(experts):
        assert made.set_expert(number, on_device(number))
    return made


def given(kind: str, x: torch.Tensor) -> torch.Tensor | QuantizedRows:
    """The same for both: what is between two codes would tell them apart."""
    if kind not in CODES:
        return x
    return TWIN.quantize(x, CODES[kind], GROUP if kind == "blocks" else 0)


def route(
    kernels: Kernels, device: torch.device, n: int, experts: int, top_k: int, dtype: torch.dtype
) -> None:
    # As a product leaves them: a slice of something wider.
    scores = random(n, experts + 3, dtype=dtype, device=device, scale=2.0)[:, :experts]
    if dtype != torch.float32:  # no two are equal, of which either may come first
        order = torch.arange(experts, dtype=dtype, device=device)
        scores = (order[torch.randperm(experts, device=device)] / 8).expand(n, -1)
    for renormalize in (False, True):
        weights, chosen = kernels.route(scores, top_k, renormalize=renormalize)
        shares, visits = kernels.route_visits(scores, top_k, renormalize=renormalize)
        expected, theirs = TWIN.route(scores, top_k, renormalize=renormalize)
        assert chosen.dtype == torch.int32
        assert torch.equal(chosen, theirs)
        close(weights, expected)
        close(shares, expected)
        same_tables(visits, TWIN.sort_visits(theirs, experts))


def same_tables(actual: Visits, expected: Visits) -> None:
    """Equal but for what empty blocks hold."""
    assert actual[2:] == expected[2:]
    assert torch.equal(actual.experts, expected.experts)
    filled = actual.experts >= 0
    mine, other = (torch.unflatten(v.order, 0, (-1, v.lines))[filled] for v in (actual, expected))
    assert torch.equal(mine, other)


def experts(
    kernels: Kernels,
    device: torch.device,
    chosen: torch.Tensor,
    kind: str,
    num_experts: int,
    hidden: int,
    inner: int,
    act: Activation | ClampedAct = "silu",
    lines: int | None = None,
    groups: int = 1,
    dtype: torch.dtype = torch.float32,
    *,
    has_bias: bool = False,
) -> None:
    """Both products, and the sum; of what is in no visit's place, nothing is written."""
    n, top_k = chosen.shape
    chosen = chosen.int().to(device)
    weights = random(n, top_k, dtype=torch.float32, device=device).abs()
    table = TWIN.sort_visits(chosen, num_experts, lines)
    # Empty blocks seem to have the first visit.
    empty = (table.experts < 0).repeat_interleave(table.lines)
    table = table._replace(order=table.order.masked_fill(empty, 0))
    first = stack(kernels, device, kind, num_experts, 2 * inner, hidden, groups).matrices
    second = stack(kernels, device, kind, num_experts, hidden, inner, groups).matrices
    if has_bias:
        first, second = (
            each._replace(bias=random(num_experts, each.rows, dtype=dtype, device=device))
            for each in (first, second)
        )
    x = given(kind, random(n, hidden, dtype=dtype, device=device))
    mine, other = torch.full((2, n * top_k + 1, inner), 7.0, dtype=dtype, device=device)
    TWIN.expert_gates(x, first, table, act, mine[:-1])
    kernels.expert_gates(x, first, table, act, other[:-1])
    y = given(kind, mine[:-1])
    answers, others = torch.full((2, n * top_k + 1, hidden), 7.0, dtype=dtype, device=device)
    TWIN.expert_answers(y, second, table, weights, answers[:-1])
    kernels.expert_answers(y, second, table, weights, others[:-1])
    total, expected = (which.sum_visits(answers[:-1], top_k) for which in (kernels, TWIN))
    same_tables(kernels.sort_visits(chosen, num_experts, lines), table)
    near(other, mine)
    near(others, answers)
    close(total, expected)


def near(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal but for the order of additions, of numbers as large as most."""
    assert actual.dtype == expected.dtype
    assert torch.isfinite(actual).all()
    assert torch.equal(actual[-1], expected[-1])
    rtol = 2e-5 if actual.dtype == torch.float32 else 2**-6
    scale = float(expected[:-1].float().abs().mean()) + 1e-9
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=rtol * scale)


def numbers_of(form: Form) -> torch.Tensor:
    """The numbers of one expert's matrix, ``[rows, columns]``."""
    if isinstance(form, torch.Tensor):
        return form
    if isinstance(form, RowCodes):
        return form.codes.float() * form.scales.unsqueeze(1)
    assert isinstance(form, PackedWeight)
    return unpack(form).t()
