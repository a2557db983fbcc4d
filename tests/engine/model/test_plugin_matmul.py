"""Plugin matmul in model layers: on a CPU, on a device, and batch-invariant."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.model.linears.plugin_matmul import (
    MatmulPlugin,
    MatmulPlugins,
    PluginLinear,
    UnfitMatmul,
)
from gatewayd_engine.model.linears.select_cpu import make_cpu_linear
from gatewayd_engine.model.parts import FusedParts, LayerParts, PlainParts, with_matmul_plugins
from gatewayd_hooks.multiplying import Form
from gatewayd_hooks.quantization import GroupedWeight, StaticWeight
from tests.engine.float64_matmul_plugin import Plain, PlainConfig, PlainProduct
from tests.engine.four_bit_format_plugin import meant, rounded

LINES = 5


def made(
    parts: LayerParts, rows: int = 48, bias: bool = True
) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """A matrix's product, inputs, and what they make in float64."""
    generator = torch.Generator().manual_seed(3)
    numbers, x = (torch.randn(n, 64, generator=generator) for n in (rows, LINES))
    weight = rounded(numbers)
    add = torch.randn(rows, generator=generator) if bias else None
    linear = parts.linear(weight, add, torch.float32)
    exact = x.double() @ meant(weight).double().t()
    return linear, x, exact if add is None else exact + add


def plain(columns: int = 0) -> Plain:
    return Plain(PlainConfig(columns=columns))


@pytest.mark.parametrize("parts", [PlainParts(), FusedParts(TorchKernels())], ids=["cpu", "device"])
def test_it_multiplies_adds_and_leaves_the_rest_to_be_added(parts: LayerParts) -> None:
    ours = with_matmul_plugins(parts, MatmulPlugins([MatmulPlugin("plain", plain())]))
    linear, x, exact = made(ours)
    assert isinstance(linear, PluginLinear)
    assert linear.nbytes == 48 * 64 * 8
    assert torch.equal(linear(x), exact.float())
    out = torch.empty(LINES, 48)
    assert linear(x, out=out) is out
    assert torch.equal(out, exact.float())
    stream = torch.ones(LINES, 48)
    delta = linear.add_to(stream, x)
    assert delta is not None
    assert torch.equal(stream + delta, exact.float() + 1)


def test_what_nobody_takes_and_floats_are_the_engines() -> None:
    strategy = plain(columns=128)
    bringers = MatmulPlugins([MatmulPlugin("plain", strategy)])
    on: tuple[LayerParts, ...] = (PlainParts(), FusedParts(TorchKernels()))
    for parts in on:
        linear, _, _ = made(with_matmul_plugins(parts, bringers))
        assert type(linear) is type(made(parts)[0])
        floats = with_matmul_plugins(parts, bringers).linear(torch.ones(4, 4), None, torch.float32)
        assert type(floats) is type(parts.linear(torch.ones(4, 4), None, torch.float32))
    assert strategy.made == []
    assert with_matmul_plugins(parts, MatmulPlugins()) is parts


def test_matrices_with_static_inputs_are_the_engines_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    strategy = plain()
    bringers = MatmulPlugins([MatmulPlugin("plain", strategy)])
    parts = with_matmul_plugins(PlainParts(), bringers)
    weight = GroupedWeight(torch.zeros(8, 64, dtype=torch.int8), torch.zeros(8, 1))
    for one in (StaticWeight(weight, "int8", 0.5), StaticWeight(torch.ones(8, 64), "e4m3", 0.5)):
        assert type(parts.linear(one, None, torch.float32)) is type(make_cpu_linear(one))
    made(parts)
    assert len(strategy.made) == 1
    caplog.set_level(logging.INFO)
    bringers.log_summary()
    assert "plain multiplies 1 of 2 low-bit matrices" in caplog.text


def test_its_norms_and_gates_are_those_of_a_matrix_of_floats() -> None:
    parts = FusedParts(TorchKernels())
    ours = with_matmul_plugins(parts, MatmulPlugins([MatmulPlugin("plain", plain())]))
    linear, x, _ = made(ours)
    normed = ours.norm(torch.ones(64), 1e-6, 0.0, linear)(x)
    assert torch.equal(normed, parts.norm(torch.ones(64), 1e-6, 0.0)(x))
    gated = ours.gate("silu", linear)(x)
    assert torch.equal(gated, parts.gate("silu", parts.linear(torch.ones(2, 2), None, x.dtype))(x))


def test_what_is_asked_describes_the_weight() -> None:
    strategy = plain()
    made(with_matmul_plugins(PlainParts(), MatmulPlugins([MatmulPlugin("plain", strategy)])))
    codes, device = torch.uint8, torch.device("cpu")
    assert strategy.made == [
        Form(48, 64, codes, 4, 4, True, True, "float", True, torch.float32, device, None)
    ]


class Swayed(PlainProduct):
    """One whose rows depend on how many there are, as those of most kernels do a little."""

    is_steady = False

    def __call__(self, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        made = super().__call__(x).mul_(1 + len(x) * 1e-6)
        return made if out is None else out.copy_(made)


def test_where_bits_matter_it_multiplies_row_after_row() -> None:
    weight = rounded(torch.randn(32, 64))
    linear = PluginLinear("swayed", Swayed(weight, None))
    x = torch.randn(LINES, 64)
    alone = torch.cat([linear(row) for row in torch.split(x, 1)])
    assert not torch.equal(linear(x), alone)
    linear.is_steady = True
    assert torch.equal(linear(x), alone)
    out = torch.empty(LINES, 32)
    assert linear(x, out=out) is out
    assert torch.equal(out, alone)
    assert linear(x[:0]).shape == (0, 32)


def test_a_matrix_of_zeros_is_no_fault() -> None:
    weight = GroupedWeight(torch.zeros(8, 64, dtype=torch.int8), torch.zeros(8, 1), None, 4)
    bringers = MatmulPlugins([MatmulPlugin("plain", plain())])
    assert bringers.make(weight, None, torch.float32) is not None


class Noting(Plain):
    """One that notes how many lines it is given, and makes zeros of a row.

    Args:
        lost: that row, counted from the end; 0 for none.
    """

    def __init__(self, lost: int = 0) -> None:
        super().__init__(PlainConfig())
        self.lines: list[int] = []
        self._lost = lost

    def take(self, form: Form, weight: GroupedWeight, bias: torch.Tensor | None) -> Any:
        """See ``Multiplies``."""
        noted, lost = self.lines, self._lost

        class Product(PlainProduct):
            def __call__(self, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
                noted.append(len(x))
                made = super().__call__(x, out=out)
                if lost:
                    made[:, -lost] = 0.0
                return made

        return Product(weight, bias)


def test_many_lines_are_tried_once_for_matrices_of_a_form() -> None:
    strategy = Noting()
    bringers = MatmulPlugins([MatmulPlugin("plain", strategy)])
    for rows in (16, 16, 32):
        bringers.make(rounded(torch.randn(rows, 64)), None, torch.float32)
    assert strategy.lines == [2, 65, 2, 2, 65]


def test_a_row_that_is_wrong_hides_behind_no_longer_ones() -> None:
    """Of what is far shorter than the rest it does not matter: scales of float16 may lose it."""
    sizes = torch.ones(16, 1)
    sizes[-1], sizes[-2] = 0.1, 1e-4
    weight = rounded(torch.randn(16, 64))
    assert weight.offsets is not None
    weight = weight._replace(scales=weight.scales * sizes, offsets=weight.offsets * sizes)
    for lost, is_fit in ((0, True), (1, False), (2, True)):
        bringers = MatmulPlugins([MatmulPlugin("plain", Noting(lost))])
        if is_fit:
            assert bringers.make(weight, None, torch.float32) is not None
        else:
            with pytest.raises(UnfitMatmul, match="far from those of the weight"):
                bringers.make(weight, None, torch.float32)


def test_a_long_bias_counts_for_what_rounding_it_may_lose() -> None:
    weight, bias = rounded(torch.randn(16, 64)), torch.full((16,), 3e3)
    bringers = MatmulPlugins([MatmulPlugin("plain", plain())])
    assert bringers.make(weight, bias.bfloat16(), torch.bfloat16) is not None
