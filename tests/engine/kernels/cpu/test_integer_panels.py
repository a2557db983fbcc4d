"""Integer panels of each processor hold the codes and factors that were packed, where they say."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gatewayd_engine.kernels.cpu.integer_panels import pack_integers
from gatewayd_engine.kernels.cpu.panel_layout import NEST, code_layout
from gatewayd_engine.kernels.cpu.panels import Panels
from gatewayd_engine.kernels.llvm.processor import KINDS, Processor
from gatewayd_hooks.quantization import GroupedWeight


def kind(processor: Processor) -> str:
    return processor.kind


def read(panels: Panels, processor: Processor) -> tuple[list[list[int]], list[list[float]]]:
    """Read codes and scales byte by byte, as the layout's documentation says."""
    form, lanes = panels.form, processor.lanes
    layout = code_layout(form.codes, processor.dots)
    width, count = 2 * lanes, form.num_factors
    size = panels.inputs // panels.groups
    codes, scales = [], []
    for output in range(panels.outputs):
        data = panels.data[output // width].tolist()
        lane = output % width
        at, line, factors = 0, list[int](), list[float]()
        for group in range(panels.groups):
            outer = 1.0
            if form.is_nested:
                if group * size % NEST == 0:
                    nest = at
                    at += form.nest_bytes(lanes)
                outer = _float(data, nest + 4 * lane, "f32")
                byte = data[at + lane]
                factors.append(outer * (byte - 256 if byte > 127 else byte))
            else:
                each = form.header_bytes(lanes) // (width * count)
                factors.append(_float(data, at + each * lane, form.factors))
            at += form.header_bytes(lanes)
            for _ in range(size // layout.inputs):
                line += _unit(data, at, lane, layout.bits, layout.adjacent, width)
                at += form.input_bytes(lanes) * layout.inputs
        bias = 256 if layout.bits == 8 and not layout.is_unsigned else 0
        signed = [code - bias if bias and code > 127 else code for code in line]
        codes.append([code - layout.zero for code in signed])
        scales.append(factors)
    return codes, scales


def _unit(data: list[int], at: int, lane: int, bits: int, adjacent: int, width: int) -> list[int]:
    def plane(number: int) -> list[int]:
        begin = at + (number * width + lane) * adjacent
        return data[begin : begin + adjacent]

    if bits == 8:
        return plane(0)
    if bits == 4:
        return [byte & 15 for byte in plane(0)] + [byte >> 4 for byte in plane(0)]
    low = [*_unit(data, at, lane, 4, adjacent, width)]
    low += [byte & 15 for byte in plane(1)] + [byte >> 4 for byte in plane(1)]
    return [
        code | (plane(2)[i % adjacent] >> 2 * (i // adjacent) & 3) << 4
        for i, code in enumerate(low)
    ]


def _float(data: list[int], at: int, kind: str) -> float:
    dtypes = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
    size = 4 if kind == "f32" else 2
    return float(torch.tensor(data[at : at + size], dtype=torch.uint8).view(dtypes[kind]))


@pytest.mark.parametrize("processor", KINDS, ids=kind)
@pytest.mark.parametrize("bits", [8, 6, 4])
@pytest.mark.parametrize("is_signed", [True, False])
@pytest.mark.parametrize(("size", "stored"), [(32, "f16"), (16, "nested"), (512, "f32")])
def test_what_was_packed_is_read_back(
    processor: Processor, bits: int, is_signed: bool, size: int, stored: str
) -> None:
    draw = torch.Generator().manual_seed(bits)
    rows, inputs = 2 * processor.lanes + 1, 512
    least = -(1 << (bits - 1)) if is_signed else 0
    codes = torch.randint(least, least + (1 << bits), (rows, inputs), generator=draw)
    codes[:, :2] = torch.tensor([least, least + (1 << bits) - 1])
    scales = torch.rand(rows, inputs // size, generator=draw)
    if stored == "f16":
        scales = (scales + 1.0).half().float()
    elif stored == "nested":
        steps = (1.0 + 2.0**-10) * 2.0 ** -(torch.arange(rows)[:, None] % 4)
        scales = torch.arange(-16.0, 16.0) * steps
    dtype = torch.int8 if is_signed else torch.uint8
    panels = pack_integers(GroupedWeight(codes.to(dtype), scales.contiguous()), processor)
    assert panels is not None
    assert panels.form.codes == f"{'s' if is_signed else 'u'}{bits}"
    assert panels.form.factors == stored
    found, factors = read(panels, processor)
    assert found == codes.tolist()
    assert torch.equal(torch.tensor(factors), scales)


@given(
    step=st.floats(2.0**-20, 2.0**20, width=32),
    times=st.lists(st.integers(-128, 127), min_size=16, max_size=16),
)
def test_multiples_of_one_number_are_nested_exactly(step: float, times: list[int]) -> None:
    processor = KINDS[0]
    # Eleven bits, as float16 has: products with bytes are exact.
    base = torch.tensor(step).view(torch.int32) & -(1 << 13)
    scales = base.view(torch.float32) * torch.tensor(times)
    codes = torch.arange(256).remainder(13).to(torch.int8)[None]
    panels = pack_integers(GroupedWeight(codes, scales[None]), processor)
    assert panels is not None
    if panels.form.is_nested:  # else 16 bits hold them
        _, factors = read(panels, processor)
        assert torch.equal(torch.tensor(factors[0]), scales)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_largest_scale_of_a_nest_may_have_either_sign(sign: float) -> None:
    times = torch.tensor([-128.0, *range(-7, 8)])
    scales = sign * (1.0 + 2.0**-10) * times
    codes = torch.arange(256).remainder(13).to(torch.int8)[None]
    panels = pack_integers(GroupedWeight(codes, scales[None]), KINDS[0])
    assert panels is not None
    assert panels.form.is_nested
    _, factors = read(panels, KINDS[0])
    assert torch.equal(torch.tensor(factors[0]), scales)


def test_other_scales_are_not_nested() -> None:
    draw = torch.Generator().manual_seed(0)
    scales = torch.rand(9, 16, generator=draw)
    codes = torch.zeros(9, 512, dtype=torch.int8)
    panels = pack_integers(GroupedWeight(codes, scales), KINDS[0])
    assert panels is not None
    assert panels.form.factors == "f32"
