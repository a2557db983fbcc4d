"""Kernels compile for each kind of processor, with its vectors, and keep sums in registers."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gatewayd_engine.kernels.cpu import matmul
from gatewayd_engine.kernels.cpu.float_tile import add_float_tile
from gatewayd_engine.kernels.cpu.panel_layout import PanelFormat
from gatewayd_engine.kernels.cpu.step import add_step
from gatewayd_engine.kernels.cpu.step_layout import StepShape
from gatewayd_engine.kernels.cpu.team_code import add_team
from gatewayd_engine.kernels.llvm.builder import new_module
from gatewayd_engine.kernels.llvm.compiler import to_assembly, to_object
from gatewayd_engine.kernels.llvm.processor import (
    AVX2,
    AVX512,
    KINDS,
    NEON,
    VNNI,
    Processor,
    host,
)

FUSED = {
    AVX2: r"vfn?madd\w+ps\s.*%ymm",
    AVX512: r"vfn?madd\w+ps\s.*%zmm",
    VNNI: r"vfn?madd\w+ps\s.*%zmm",
    NEON: r"fmla\s+v\d+\.4s",
}
"""Instructions that multiply and add vectors."""
DOTS = {
    AVX2: {8: r"vpmaddwd\s.*%ymm", 6: r"vpmaddubsw\s.*%ymm", 4: r"vpmaddubsw\s.*%ymm"},
    AVX512: {8: r"vpmaddwd\s.*%zmm", 6: r"vpmaddubsw\s.*%zmm", 4: r"vpmaddubsw\s.*%zmm"},
    VNNI: dict.fromkeys((8, 6, 4), r"vpdpbusd\s.*%zmm"),
    NEON: dict.fromkeys((8, 6, 4), r"sdot\s+v\d+\.4s"),
}
"""Instructions that add products of integers, by the bits of the weights."""
STACK = r"\(%rsp|\(%rbp\)|\[sp|\[x29"
"""Memory on the stack; with an index, %rbp is a register like others."""
SPILL = r"^vmov\w+\s+%[yz]mm\d+, -?\d*\(%r[sb]p\)|^st\w+\s+q.*\[(sp|x29)"
"""A vector that is written to the stack."""
APPLE = replace(NEON, triple="arm64-apple-darwin")
PLAIN = StepShape(
    num_layers=2,
    hidden=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    intermediate=96,
    rotary_dim=16,
    norm_eps=1e-5,
    scale=0.25,
    softcap=None,
    activation="silu",
    qk_norm=None,
    pre_norms=True,
    post_norms=False,
    page_size=16,
    vocab=320,
    logit_softcap=None,
)
SHAPES = {
    "plain": PLAIN,
    "norms of heads": replace(PLAIN, qk_norm="head"),
    "norms of projections, after parts alone": replace(
        PLAIN, qk_norm="projection", pre_norms=False, post_norms=True
    ),
    "all": replace(
        PLAIN,
        qk_norm="head",
        post_norms=True,
        softcap=50.0,
        logit_softcap=30.0,
        activation="gelu_tanh",
        num_heads=10,
        head_dim=80,
    ),
}


FORMS = [
    *(PanelFormat(codes) for codes in ("f32", "bf16", "f16")),
    PanelFormat("s8", 1, "f32"),
    PanelFormat("u8", 2, "f16"),
    PanelFormat("s4", 1, "f16"),
    PanelFormat("u4", 2, "bf16"),
    PanelFormat("e4m3", 1, "f32"),
]


ROUNDED_FORMS = [
    PanelFormat("s8", 1, "f16", 32),
    PanelFormat("u8", 2, "f32", 32),
    PanelFormat("s6", 1, "nested", 16),
    PanelFormat("u4", 2, "nested", 32),
    PanelFormat("s4", 1, "bf16", 16),
]


def kind(processor: Processor) -> str:
    return processor.kind


def name(form: PanelFormat) -> str:
    return form.name


def assembly(processor: Processor, add: Callable[[Any], object]) -> str:
    module = new_module("test")
    add(module)
    return to_assembly(module, processor)


@pytest.mark.parametrize(
    "processor", [*KINDS, APPLE], ids=["avx2", "avx512", "vnni", "neon", "apple"]
)
def test_a_team_compiles(processor: Processor) -> None:
    text = assembly(processor, lambda module: add_team(module, processor))
    for symbol in ("member", "start_job", "join_job", "stop_team"):
        assert re.search(rf"^_?{symbol}:", text, re.MULTILINE)
    assert ("syscall" in text) == ("linux" in processor.triple)
    assert ("usleep" in text) == ("linux" not in processor.triple)


@pytest.mark.parametrize("processor", KINDS, ids=kind)
@pytest.mark.parametrize("form", [*FORMS, *ROUNDED_FORMS], ids=name)
def test_products_compile_to_instructions_of_the_processor(
    processor: Processor, form: PanelFormat
) -> None:
    def add(module: Any) -> None:
        product = matmul.add_matmul(module, processor, form)
        matmul.add_product(module, processor, form, product)

    text = assembly(processor, add)
    for symbol in ("matmul", "product", "round") if form.span else ("matmul", "product"):
        assert re.search(rf"^{symbol}_{form.name}:", text, re.MULTILINE)
    assert re.search(FUSED[processor], text)
    if form.span:
        assert re.search(DOTS[processor][int(form.codes[1])], text)


@pytest.mark.parametrize("processor", KINDS, ids=kind)
@pytest.mark.parametrize("shape", SHAPES)
def test_steps_compile_to_instructions_of_the_processor(processor: Processor, shape: str) -> None:
    text = assembly(processor, lambda module: add_step(module, processor, SHAPES[shape]))
    assert re.search(r"^step:", text, re.MULTILINE)
    assert re.search(FUSED[processor], text)


@pytest.mark.parametrize("processor", KINDS, ids=kind)
def test_an_object_file_is_of_the_processor(processor: Processor) -> None:
    module = new_module("test")
    add_team(module, processor)
    code = to_object(module, processor)
    machine = {"x86_64": 62, "aarch64": 183}[processor.triple.split("-")[0]]
    assert code[:4] == b"\x7fELF"
    assert int.from_bytes(code[18:20], "little") == machine


def inner_loops(text: str) -> list[list[str]]:
    """Return the instructions of each loop that is one block."""
    loops: list[list[str]] = []
    label, block = "", list[str]()
    for line in text.splitlines():
        if found := re.match(r"(\.LBB\w+):", line):
            label, block = found[1], []
        elif line.startswith("\t") and not line.startswith("\t."):
            block.append(line.strip())
            if label and re.search(rf"\s{re.escape(label)}$", line):
                loops.append(list(block))
    return loops


def matching(pattern: str, lines: list[str]) -> list[str]:
    return [line for line in lines if re.search(pattern, line)]


def tile_loops(processor: Processor, form: PanelFormat, rows: int) -> list[list[str]]:
    def add(module: Any) -> None:
        add_float_tile(module, processor, form, rows).function.linkage = ""

    return inner_loops(assembly(processor, add))


@pytest.mark.parametrize("processor", KINDS, ids=kind)
@pytest.mark.parametrize("form", FORMS, ids=name)
def test_sums_of_whole_tiles_stay_in_registers(processor: Processor, form: PanelFormat) -> None:
    loops = tile_loops(processor, form, processor.row_tile)
    assert loops
    for loop in loops:
        sums = len(matching(FUSED[processor], loop))
        assert sums > 0
        assert sums % (2 * processor.row_tile) == 0
        if form.num_factors:
            # Factors may be read from there; AVX2 lacks registers for the widening of 8-bit floats.
            spilled = matching(SPILL, loop)
            assert len(spilled) <= 3 * (processor is AVX2), spilled
        else:
            assert not matching(STACK, loop)


def test_sums_that_do_not_fit_would_be_seen() -> None:
    too_large = AVX2.row_tile + 4
    (loop,) = tile_loops(replace(AVX2, registers=2 * too_large + 4), PanelFormat("bf16"), too_large)
    assert matching(STACK, loop)
    assert matching(SPILL, loop)


def test_this_machine_is_of_a_known_kind() -> None:
    found = host()
    if found is None:
        pytest.skip("no compiled kernels for this processor")
    generic = next(each for each in KINDS if each.kind == found.kind)
    assert (found.lanes, found.registers) == (generic.lanes, generic.registers)
    assert found.dots in (generic.dots, "")
    assert found == host()
