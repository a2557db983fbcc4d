"""MoE kernels: torch reference equals single experts, Triton equals the reference."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gatewayd_engine.kernels.base import Kernels
from gatewayd_engine.kernels.experts import routing
from gatewayd_engine.kernels.experts.base import (
    LINES,
    ClampedAct,
    Visits,
    block_lines,
    most_blocks,
    one_of,
)
from gatewayd_engine.kernels.quantized.base import Activation
from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.model.layers import ClampedGated
from tests.engine.kernels import expert_checks
from tests.engine.kernels.checks import random
from tests.engine.kernels.expert_checks import CPU, stack

ONE, SKEWED = torch.tensor([[3, 0]]), torch.tensor([[1, 4]]).expand(19, -1)
"""A single token; and all tokens to two of the experts."""


def spread(n: int, experts: int, top_k: int) -> torch.Tensor:
    """Different experts for each token; no token visits the last expert."""
    generator = torch.Generator().manual_seed(n)
    order = torch.rand(n, experts - 1, generator=generator).argsort(1)
    return order[:, :top_k].contiguous()


@given(st.lists(st.integers(0, 5), max_size=80), st.sampled_from(LINES))
def test_blocks_are_enough_and_hold_each_visit_once(chosen: list[int], lines: int) -> None:
    table = TorchKernels().sort_visits(
        torch.tensor(chosen, dtype=torch.int32).view(-1, 1), 6, lines
    )
    check_tables(table, chosen)


def check_tables(table: Visits, chosen: list[int]) -> None:
    """By counting."""
    found: list[tuple[int, int]] = []
    for expert, block in zip(
        table.experts.tolist(), table.order.view(-1, table.lines).tolist(), strict=True
    ):
        if expert >= 0:
            real = [visit for visit in block if visit < len(chosen)]
            assert real
            assert block[len(real) :] == [len(chosen)] * (table.lines - len(real))
            found += [(expert, visit) for visit in real]
    assert found == sorted((expert, visit) for visit, expert in enumerate(chosen))


@given(st.lists(st.integers(0, 200), min_size=1, max_size=20), st.sampled_from(LINES))
def test_the_bound_of_blocks_is_reached_but_not_exceeded(counts: list[int], lines: int) -> None:
    def needed(each: list[int]) -> int:
        return sum(-(-count // lines) for count in each)

    most = most_blocks(sum(counts), len(counts), lines)
    assert needed(counts) <= most
    # At worst each visited expert has one line in its last block.
    visited = min(sum(counts), len(counts))
    left = (sum(counts) - visited) // lines
    assert needed([1 + lines * left, *[1] * (visited - 1)] if visited else []) == most


def test_blocks_have_about_the_visits_of_an_expert() -> None:
    # One token of Qwen3-30B's, 256, a prompt of 1,024 and of 8,192.
    counts = [8 * n for n in (1, 256, 1024, 8192)]
    assert [block_lines(count, 128) for count in counts] == [16, 16, 64, 128]
    assert block_lines(2 * 64, 8) == 16


@pytest.mark.parametrize(("n", "experts", "top_k"), [(1, 5, 1), (3, 11, 8), (17, 4, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tokens_are_routed_as_by_the_twin(
    kernels: Kernels, device: torch.device, n: int, experts: int, top_k: int, dtype: torch.dtype
) -> None:
    expert_checks.route(kernels, device, n, experts, top_k, dtype)


def test_more_tokens_than_a_tile_holds_are_routed_apart(
    kernels: Kernels, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "_FEW", (2,))
    expert_checks.route(kernels, device, 3, 5, 2, torch.float32)


def test_scores_that_are_no_numbers_choose_experts_that_there_are(
    kernels: Kernels, device: torch.device
) -> None:
    scores = torch.zeros(4, 6, device=device)
    scores[0, 2], scores[1], scores[2, 1] = torch.nan, torch.inf, torch.inf
    for which in (kernels, TorchKernels()):
        weights, chosen = which.route(scores, 3, renormalize=True)
        assert weights[:3].isnan().all()
        assert weights[3].tolist() == pytest.approx([1 / 3] * 3)
        for line in chosen.tolist():
            assert len(set(line)) == 3
            assert {*line} <= {*range(6)}
        shares, visits = which.route_visits(scores, 3, renormalize=True)
        torch.testing.assert_close(shares, weights, equal_nan=True)
        expert_checks.same_tables(visits, TorchKernels().sort_visits(chosen, 6))


CASES = [
    ("float32", ONE, 160, "gelu_tanh"),
    ("float32", spread(9, 6, 3), 160, "silu"),
    ("bfloat16", SKEWED, 160, "silu"),
    ("int8 rows", spread(5, 6, 1), 96, "gelu"),
    ("e4m3 rows", SKEWED[:3], 96, "silu"),
    ("blocks", spread(3, 6, 5), 256, "silu"),
]
"""One token, few and many for an expert, one expert each and nearly all; the last is left out."""


@pytest.mark.parametrize(("kind", "chosen", "hidden", "act"), CASES)
def test_experts_multiply_as_by_the_twin(
    kernels: Kernels,
    device: torch.device,
    kind: str,
    chosen: torch.Tensor,
    hidden: int,
    act: Activation,
) -> None:
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
    inner = 128 if kind == "blocks" else 48
    expert_checks.experts(kernels, device, chosen, kind, 6, hidden, inner, act, dtype=dtype)


@pytest.mark.parametrize(
    ("kind", "groups", "dtype"),
    [("symmetric", 1, torch.bfloat16), ("any order", 2, torch.float32), ("e4m3", 1, torch.float32)],
)
def test_packed_experts_multiply_as_by_the_twin(
    kernels: Kernels, device: torch.device, kind: str, groups: int, dtype: torch.dtype
) -> None:
    # Words of one group, and of several, in the order of the input or in none.
    chosen = torch.cat((spread(4, 5, 2), SKEWED[:2]))
    expert_checks.experts(
        kernels, device, chosen, kind, 5, 160, 32, "gelu", groups=groups, dtype=dtype
    )


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("float32", torch.float32), ("bfloat16", torch.bfloat16), ("symmetric", torch.float32)],
)
def test_biases_are_added_and_clamped_gates_multiply_as_by_the_twin(
    kernels: Kernels, device: torch.device, kind: str, dtype: torch.dtype
) -> None:
    """As of gpt-oss; so small a limit is reached by most."""
    chosen = torch.cat((spread(4, 5, 2), SKEWED[:2]))
    for act in (ClampedAct(0.5, 1.7), "silu"):
        expert_checks.experts(
            *(kernels, device, chosen, kind, 5, 160, 32, act), dtype=dtype, has_bias=True
        )


def test_the_twin_adds_biases_and_clamps_as_the_layer_on_a_cpu() -> None:
    twin, chosen, act = TorchKernels(), spread(11, 5, 2).int(), ClampedAct(0.4, 1.3)
    matrices = stack(twin, CPU, "float32", 5, 64, 128).matrices
    matrices = matrices._replace(bias=torch.randn(5, 64))
    assert matrices.bias is not None
    x, out = torch.randn(11, 128), torch.empty(22, 32)
    twin.expert_gates(x, matrices, twin.sort_visits(chosen, 5), act, out)
    gate = ClampedGated(act.limit, act.sharpness)
    for visit, expert in enumerate(chosen.flatten().tolist()):
        one = expert_checks.numbers_of(one_of(matrices.all, expert))
        joined = one @ x[visit // 2] + matrices.bias[expert]
        torch.testing.assert_close(out[visit], gate(joined.unsqueeze(0))[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "lines"), [("float32", 32), ("bfloat16", 128), ("offsets", 64)])
def test_blocks_of_any_size_multiply_alike(
    kernels: Kernels, device: torch.device, kind: str, lines: int
) -> None:
    chosen = torch.cat((torch.full((lines + 3, 1), 2), torch.tensor([[0], [3]])))
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
    expert_checks.experts(kernels, device, chosen, kind, 4, 64, 32, lines=lines, dtype=dtype)


def multiplies_rows_alike() -> bool:
    """Whether numpy's BLAS, which the interpreter uses, adds up all rows of a tile in one order."""
    rng = np.random.default_rng(0)
    for rows, inner, columns in itertools.product((16, 32, 64), (16, 32, 64, 96), (16, 32)):
        x = rng.standard_normal((rows, inner), np.float32)
        weight = rng.standard_normal((inner, columns), np.float32)
        whole = x @ weight
        for places in range(1, rows):
            if not np.array_equal(np.roll(x, places, 0) @ weight, np.roll(whole, places, 0)):
                return False
    return True


def test_a_row_does_not_depend_on_who_else_visits(kernels: Kernels, device: torch.device) -> None:
    matrices = stack(kernels, device, "float32", 4, 32, 96).matrices
    x = random(20, 96, dtype=torch.float32, device=device)
    some = torch.tensor([[i % 4, (i + 1) % 4] for i in range(20)], dtype=torch.int32, device=device)
    made = torch.empty(40, 16, device=device)
    kernels.expert_gates(x, matrices, kernels.sort_visits(some, 4), "silu", made)
    x[:19] = torch.nan
    alone = torch.empty(40, 16, device=device)
    some[:19] = some[19]
    kernels.expert_gates(x, matrices, kernels.sort_visits(some, 4), "silu", alone)
    near = 0.0 if device.type != "cpu" or multiplies_rows_alike() else 1e-6
    torch.testing.assert_close(made[38:], alone[38:], rtol=0.0, atol=near)
    assert alone[:38].isnan().all()


def test_nothing_is_made_of_no_tokens(kernels: Kernels, device: torch.device) -> None:
    matrices = stack(kernels, device, "float32", 3, 16, 16).matrices
    weights, chosen = kernels.route(torch.empty(0, 3, device=device), 2, renormalize=True)
    visits = kernels.sort_visits(chosen, 3)
    out = torch.empty(0, 8, device=device)
    kernels.expert_gates(torch.empty(0, 16, device=device), matrices, visits, "silu", out)
    answers = torch.empty(0, 16, device=device)
    kernels.expert_answers(torch.empty(0, 16, device=device), matrices, visits, weights, answers)
    assert kernels.sum_visits(answers, 2).shape == (0, 16)


@pytest.mark.parametrize("kind", ["float32", "e4m3 rows", "any order"])
def test_the_twin_is_each_expert_alone(kind: str) -> None:
    twin, chosen = TorchKernels(), spread(11, 5, 2).int()
    matrices = stack(twin, CPU, kind, 5, 64, 128, 2).matrices
    x = torch.randn(11, 128)
    taken = expert_checks.given(kind, x)
    out, weights = torch.empty(22, 32), torch.rand(11, 2)
    twin.expert_gates(taken, matrices, twin.sort_visits(chosen, 5), "silu", out)
    wide = x if isinstance(taken, torch.Tensor) else taken.codes.float() * taken.scales
    for visit in range(22):
        one = expert_checks.numbers_of(one_of(matrices.all, int(chosen.flatten()[visit])))
        gate, up = (one.double() @ wide[visit // 2].double()).chunk(2)
        exact = torch.nn.functional.silu(gate) * up
        torch.testing.assert_close(out[visit].double(), exact, rtol=1e-4, atol=1e-4)
    back = stack(twin, CPU, "float32", 5, 24, 32).matrices
    answers = torch.empty(22, 24)
    twin.expert_answers(out, back, twin.sort_visits(chosen, 5), weights, answers)
    for visit in range(22):
        one = expert_checks.numbers_of(one_of(back.all, int(chosen.flatten()[visit])))
        exact = (one.double() @ out[visit].double()) * weights.flatten()[visit]
        torch.testing.assert_close(answers[visit].double(), exact, rtol=1e-4, atol=1e-4)
    total = answers.double().view(11, 2, 24).sum(1)
    torch.testing.assert_close(twin.sum_visits(answers, 2).double(), total, rtol=1e-5, atol=1e-6)
