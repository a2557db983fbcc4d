"""Quantized writing: layouts equal their formulas, and GPTQ its definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gatewayd_engine.model.weights import dense
from gatewayd_hooks.quantization import Fit, GroupedWeight, Matrix, Site
from gatewayd_quant_awq.config import AwqConfig
from gatewayd_quant_awq.strategy import Awq
from gatewayd_quant_fp8.config import Fp8QuantizerConfig
from gatewayd_quant_fp8.strategy import Fp8Quantizer
from gatewayd_quant_gptq.config import GptqConfig
from gatewayd_quant_gptq.fitting import Rounding
from gatewayd_quant_gptq.strategy import Gptq
from tests.plugins.quantized.format_cases import Case
from tests.plugins.quantized.formulas import meant

NAME = "model.layers.0.mlp.down_proj"
WRITERS: dict[str, Callable[[], Any]] = {
    "awq": lambda: Awq(AwqConfig(group_size=16)),
    "awq, a group of a row": lambda: Awq(AwqConfig(group_size=-1)),
    "gptq": lambda: Gptq(GptqConfig(group_size=16)),
    "gptq, symmetric": lambda: Gptq(GptqConfig(group_size=32, symmetric=True)),
    "gptq of 8 bits": lambda: Gptq(GptqConfig(bits=8, group_size=-1)),
    "gptq with an order": lambda: Gptq(GptqConfig(group_size=16, act_order=True)),
    "fp8": lambda: Fp8Quantizer(),
    "fp8, one scale": lambda: Fp8Quantizer(Fp8QuantizerConfig(scales="tensor")),
    "fp8 in blocks": lambda: Fp8Quantizer(Fp8QuantizerConfig(scales="block")),
}


def inputs_of(columns: int, count: int = 200) -> torch.Tensor:
    generator = torch.Generator().manual_seed(columns)
    mixed = torch.randn(columns, columns, generator=generator) / columns**0.5
    made: torch.Tensor = torch.randn(count, columns, generator=generator) @ (
        mixed + 0.5 * torch.eye(columns)
    )
    return made


def weight_of(rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows))


def site_of(rows: int, columns: int) -> Site:
    x, weight = inputs_of(columns).double(), weight_of(rows, columns)
    gram = x.t() @ x / len(x)

    def loss(others: Any) -> float:
        return float(((others[0] - weight).double() @ gram * (others[0] - weight)).sum())

    return Site((Matrix(NAME, rows, columns),), (weight,), x.float(), gram, loss)


@pytest.mark.parametrize("name", WRITERS)
def test_what_is_packed_means_what_was_rounded(name: str) -> None:
    """Word by word and byte by byte, by the formulas that readers are held against."""
    writer = WRITERS[name]()
    rows, columns = (130, 160) if name == "fp8 in blocks" else (24, 64)
    case = Case(name, writer.announce([NAME], []), lambda rows, columns: {})
    site = site_of(rows, columns)
    made = [writer.nearest(site.matrices[0], site.weights[0])]
    if hasattr(writer, "fit"):
        fit: Fit = writer.fit(site)
        made += fit.weights
    for weight in made:
        tensors = writer.pack(site.matrices[0], weight)
        assert torch.equal(meant(case, tensors, rows, columns), dense(weight))
        error = (dense(weight) - site.weights[0]).abs().max()
        assert error < 1.0


def brute(weight: torch.Tensor, gram: torch.Tensor, rounding: Rounding) -> torch.Tensor:
    """GPTQ by its definition: after each column the inverse of what remains is made anew."""
    rest, columns = weight.double(), weight.shape[1]
    damped = gram + rounding.damping * gram.diagonal().mean() * torch.eye(columns)
    order = list(range(columns))
    if rounding.is_ordered:
        order = torch.argsort(gram.diagonal(), descending=True).tolist()
    rest, damped = rest[:, order], damped[order][:, order]
    made = torch.empty_like(rest)
    for column in range(columns):
        if column % rounding.group_size == 0:
            group = rest[:, column : column + rounding.group_size]
            low, high = group.amin(1).clamp(max=0), group.amax(1).clamp(min=0)
            scale = ((high - low) / 15).half().double()
            zero = (-low / scale).round().clamp(0, 15)
        code = ((rest[:, column] / scale).round() + zero).clamp(0, 15)
        made[:, column] = (code - zero) * scale
        inverse = torch.linalg.inv(damped[column:, column:])
        error = (rest[:, column] - made[:, column]) / inverse[0, 0]
        rest[:, column:] -= torch.outer(error, inverse[0])
    return made[:, torch.tensor(order).argsort()]


@pytest.mark.parametrize("is_ordered", [False, True])
@pytest.mark.parametrize(("columns", "size"), [(16, 16), (48, 16), (160, 32)])
def test_gptq_is_what_its_definition_says(columns: int, size: int, is_ordered: bool) -> None:
    """Also beyond a block of columns, whose losses are spread at its end."""
    x = inputs_of(columns, 400).double() * torch.linspace(0.3, 2, columns)
    gram, weight = x.t() @ x / len(x), weight_of(16, columns)
    rounding = Rounding(4, size, False, is_ordered, 0.01)
    made = rounding.fit(weight, gram)
    assert made is not None
    expected = brute(weight, gram, rounding)
    is_same = (dense(made) - expected).abs() < 1e-6
    # A number between two codes may fall to either side.
    assert is_same.double().mean() > 0.995


def test_what_is_always_zero_costs_nothing_and_a_bad_hessian_is_damped() -> None:
    x = inputs_of(64, 20)  # Fewer rows than columns: of no full rank.
    x[:, :9] = 0
    gram, weight = x.double().t() @ x.double() / len(x), weight_of(8, 64)
    made = Rounding(4, 16, False, False, 1e-9).fit(weight, gram)
    assert made is not None
    assert dense(made).isfinite().all()
    nearest = Gptq(GptqConfig(group_size=16)).nearest(Matrix(NAME, 8, 64), weight)

    def lost(one: GroupedWeight) -> float:
        return float(((dense(one) - weight) @ x.t()).square().mean())

    assert lost(made) < 0.5 * lost(nearest)


def test_a_hessian_without_meaning_gives_the_nearest(caplog: pytest.LogCaptureFixture) -> None:
    site = site_of(8, 64)
    broken = Site(
        site.matrices, site.weights, site.inputs, torch.full((64, 64), float("nan")), site.loss
    )
    writer = Gptq(GptqConfig(group_size=16))
    (made,) = writer.fit(broken).weights
    assert torch.equal(dense(made), dense(writer.nearest(site.matrices[0], site.weights[0])))
    assert "insufficient calibration data" in caplog.text


@pytest.mark.parametrize(
    ("announce", "sentence"),
    [
        (lambda: Gptq().announce([NAME], [NAME.replace("0", "1")]), "in some layers and not in"),
        (lambda: Awq().announce([NAME], ["layers.0.mlp"]), "skip both"),
        (lambda: Gptq().nearest(Matrix(NAME, 8, 96), torch.ones(8, 96)), "no multiple of 128"),
    ],
)
def test_what_cannot_be_written_is_said(announce: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        announce()


def test_gptq_names_the_matrices_if_not_all_are_packed() -> None:
    up = "model.layers.{}.mlp.up_proj"
    announced = Gptq().announce([NAME, NAME.replace("0", "1")], [up.format(0), up.format(1)])
    assert announced["modules_in_block_to_quantize"] == [["mlp.down_proj"]]
    assert "modules_in_block_to_quantize" not in Gptq().announce([NAME], [])
