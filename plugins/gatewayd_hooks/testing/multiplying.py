"""Conformance checks of matrix multiplication kernels of plugins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from gatewayd_hooks.multiplying import Form, Multiplies, Product
from gatewayd_hooks.quantization import GroupedWeight
from gatewayd_hooks.testing.weights.few_bits import dense, equal, normal

ERRORS = {torch.float32: 2e-3, torch.bfloat16: 1e-2}
"""Bounds on the relative error of a row's norm: the second holds for products in 16-bit floats, the
first for those in 32-bit floats with inputs of reduced precision (such as TF32)."""
ROUNDED = 0.06
"""The same for products that quantize activations to 8-bit integers or floats."""
LINES = (0, 1, 3, 17)
"""Numbers of input rows."""


class Case(NamedTuple):
    """Supported matrix, with its expected products."""

    form: Form
    weight: GroupedWeight
    bias: torch.Tensor | None

    def meant(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product in float64."""
        made = x.double() @ dense(self.weight).double().t().to(x.device)
        return made if self.bias is None else made + self.bias.double()

    def inputs(self, lines: int) -> torch.Tensor:
        """Return some rows, always the same; every second one has ten times the magnitude."""
        sizes = torch.tensor([1.0, 10.0]).repeat(lines // 2 + 1)[:lines].unsqueeze(-1)
        made = normal(lines, self.form.columns) * sizes
        return made.to(self.form.device, self.form.dtype)


class Taken(NamedTuple):
    """Case, and the product that was made of it."""

    case: Case
    product: Product


def taken(strategy: Multiplies) -> list[Taken]:
    """Return a product of every sample that it takes over; on a GPU if there is one."""
    found = []
    for case in cases():
        if strategy.suits(case.form):
            product = strategy.take(*case)
            if product is not None:
                found.append(Taken(case, product))
    return found


def cases() -> Iterator[Case]:
    """Yield matrices of all forms that quantizers produce, in few sizes.

    An engine may have any other size.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    capability = torch.cuda.get_device_capability() if device.type == "cuda" else None
    for dtype in ERRORS:
        for index, weight in enumerate(weights()):
            bias = None if index % 2 else normal(1, len(weight.codes))[0].to(device, dtype)
            placed = [None if t is None else t.to(device) for t in (*weight[:3], weight.group_of)]
            codes, scales, offsets, group_of = placed
            assert codes is not None
            assert scales is not None
            here = weight._replace(codes=codes, scales=scales, offsets=offsets, group_of=group_of)
            form = Form(
                rows=codes.shape[0],
                columns=codes.shape[1],
                codes=codes.dtype,
                bits=weight.bits,
                groups=scales.shape[1],
                has_offsets=offsets is not None,
                is_ordered=group_of is None,
                activations=weight.activations,
                has_bias=bias is not None,
                dtype=dtype,
                device=device,
                capability=capability,
            )
            yield Case(form, here, bias)


def weights() -> Iterator[GroupedWeight]:
    """Yield codes of 4 and 8 bits and of floats, in many groups and in one, ordered or not."""
    for rows, columns in ((128, 256), (192, 128)):
        for groups in (columns // 32, columns // 128, 1):
            yield _integers(rows, columns, groups, 4, torch.int8)
            yield _integers(rows, columns, groups, 4, torch.uint8)
            yield _integers(rows, columns, groups, 8, torch.int8)
    grouped = _integers(128, 256, 8, 4, torch.uint8)
    order = torch.randperm(256, generator=torch.Generator().manual_seed(3))
    # Columns of a group are scattered, as with the activation order of GPTQ.
    yield grouped._replace(group_of=(order // 32).to(torch.int32))
    # Zero points need not be integers.
    assert grouped.offsets is not None
    yield grouped._replace(offsets=grouped.offsets + 0.3 * grouped.scales)
    floats = normal(128, 256)
    scales = floats.abs().amax(1, keepdim=True) / 448
    e4m3 = GroupedWeight((floats / scales).to(torch.float8_e4m3fn), scales)
    yield e4m3
    yield e4m3._replace(activations="e4m3")
    yield _integers(128, 256, 1, 8, torch.int8)._replace(activations="int8")


def _integers(rows: int, columns: int, groups: int, bits: int, dtype: torch.dtype) -> GroupedWeight:
    """Return all codes, including the extremes.

    Zero points are integers, as in published formats.
    """
    half = 1 << (bits - 1)
    least = -half if dtype == torch.int8 else 0
    generator = torch.Generator().manual_seed(bits * groups)
    codes = torch.randint(least, least + 2 * half, (rows, columns), generator=generator).to(dtype)
    scales = (torch.rand((rows, groups), generator=generator) + 0.5).bfloat16().float() / half
    offsets = None
    if dtype == torch.uint8:
        zeros = torch.randint(half - 3, half + 3, (rows, groups), generator=generator)
        offsets = -zeros * scales
    return GroupedWeight(codes, scales, offsets, bits)


def check_products(one: Taken) -> None:
    """Check products of few rows, of some, and of none."""
    for lines in LINES:
        _check_product(one, lines)


def _check_product(one: Taken, lines: int) -> None:
    """Check a product with and without ``out``, and that nothing else is modified."""
    case, product = one
    x = case.inputs(lines)
    before = x.clone()
    made = product(x)
    assert made.shape == (lines, case.form.rows), f"{list(made.shape)} of {lines} rows"
    assert (made.dtype, made.device.type) == (case.form.dtype, case.form.device.type)
    _check_near(one, made, x)
    # `out` is a strided view of it: what is next to it must stay NaN.
    room = torch.full((lines, case.form.rows + 8), float("nan")).to(made)
    out = room[:, : case.form.rows]
    assert product(x, out=out) is out, "out must be returned"
    _check_near(one, out, x)
    assert room[:, case.form.rows :].isnan().all(), "it wrote outside of out"
    if lines:
        # Strided inputs, as parts of a merged projection are.
        wide = x.repeat(1, 2)[:, : case.form.columns]
        _check_near(one, product(wide), x)
    assert torch.equal(x, before), "it modified its input"


def _check_near(one: Taken, made: torch.Tensor, x: torch.Tensor) -> None:
    case, product = one
    meant = case.meant(x)
    bound = ROUNDED if product.rounds_inputs else ERRORS[case.form.dtype]
    lengths = torch.linalg.vector_norm(meant, dim=1)
    errors = torch.linalg.vector_norm(made.double() - meant, dim=1)
    assert (errors <= bound * lengths).all(), f"of a row {float((errors / lengths).max()):.2g}"


def check_again(one: Taken) -> None:
    """Check that products are reproducible, whatever was multiplied meanwhile."""
    case, product = one
    x = case.inputs(3)
    first = product(x)
    kept = first.clone()
    # Another number of rows, so that a buffer that is reused would be overwritten.
    product(case.inputs(17))
    assert torch.equal(first, kept), "it wrote into an earlier result"
    assert torch.equal(product(x), kept)
    _check_steady(one)


def _check_steady(one: Taken) -> None:
    """Check that an ``is_steady`` product gives a row the same bits alone and in any batch."""
    case, product = one
    if not product.is_steady:
        return
    x = case.inputs(max(LINES))
    whole = product(x)
    for lines in LINES[1:]:
        assert torch.equal(product(x[:lines]), whole[:lines]), f"{lines} rows give other bits"
    assert torch.equal(product(x.flip(0)).flip(0), whole), "another order gives other bits"


def check_kept(one: Taken) -> None:
    """Check that it reports its memory, and can be captured."""
    case, product = one
    least = case.form.rows * case.form.columns * case.form.bits // 8
    assert isinstance(product.nbytes, int)
    assert product.nbytes >= least, "its codes alone need more"
    _check_captured(one)


def _check_captured(one: Taken) -> None:
    """Check that a call can be captured on a GPU, and replayed with new input."""
    case, product = one
    if case.form.device.type != "cuda":
        return
    x = case.inputs(3)
    out = x.new_empty(3, case.form.rows)
    product(x, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        product(x, out=out)
    x.copy_(case.inputs(3).flip(0))
    graph.replay()
    torch.cuda.synchronize()
    _check_near(one, out, x)


def check_weights_are_left(strategy: Multiplies) -> None:
    """Check that weights are unmodified for the next quantizer."""
    for case, fresh in zip(cases(), cases(), strict=True):
        if strategy.suits(case.form):
            strategy.take(*case)
            assert equal(case.weight, fresh.weight)
