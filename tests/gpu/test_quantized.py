"""Matrices of few bits on a GPU: kernels at a model's sizes, whole engines, and captured steps."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gatewayd_engine.kernels.base import Kernels
from gatewayd_engine.kernels.quantized.block_scales import GROUP
from gatewayd_engine.kernels.quantized.packing import unpack
from gatewayd_engine.kernels.quantized.quantize_rows import MOST_CODES
from gatewayd_engine.kernels.quantized.scratch import MOST_LINES, DequantizeScratch
from gatewayd_engine.kernels.select import choose
from gatewayd_engine.model import embedded, parts
from gatewayd_engine.model.linears.select_gpu import DeviceLinears
from gatewayd_engine.model.linears.sparse24 import SparseLinear
from gatewayd_engine.model.weights import to_device
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_hooks.quantization import GroupedWeight, SparseWeight, Weight
from tests.engine.core.conftest import Harness, build, mixed_prompts
from tests.engine.core.models.test_formats import catalog, written
from tests.engine.kernels import checks
from tests.engine.kernels.blocked import block_mm, in_blocks
from tests.engine.kernels.weights import KINDS, grouped
from tests.engine.runner.gpu.test_quantized import PACKED, rounding
from tests.gpu.engines import follow, greedy
from tests.plugins.quantized.writers import WRITERS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(900),  # kernels that nobody has compiled yet
]

CUDA = torch.device("cuda")
HIDDEN, INTERMEDIATE = 4096, 14336
"""Llama 3.1 8B."""
NANO_VOCAB = 4096
AUTO = StrategyChoice("auto")
CLOSE = 1.5
"""How far apart two logits of the CPU's engine may be and still change places: what bfloat16 may
do to nano's, see ``test_engine``, and what a number between two codes adds to it. Not measured."""

Make = Callable[..., Harness]


@pytest.fixture
def kernels() -> Kernels:
    return choose(CUDA)


@pytest.mark.parametrize("n", [1, 7, 16, MOST_LINES])
@pytest.mark.parametrize("kind", KINDS)
def test_few_lines_are_multiplied_with_codes(kernels: Kernels, kind: str, n: int) -> None:
    for dtype in (torch.bfloat16, torch.float32):
        checks.grouped_mm(kernels, CUDA, dtype, n, HIDDEN, INTERMEDIATE, 112, kind, True)
        checks.grouped_mm(kernels, CUDA, dtype, n, 2 * INTERMEDIATE, HIDDEN, 32, kind)
        checks.grouped_mm(kernels, CUDA, dtype, n, 1000, HIDDEN, 256, kind)


def test_a_product_is_the_same_each_time(kernels: Kernels) -> None:
    """Parts of a sum arrive in any order, and are added up in one."""
    weight = checks.packed("offsets", HIDDEN, INTERMEDIATE, 112, CUDA)
    room = DequantizeScratch(CUDA, torch.bfloat16)
    room.reserve(weight)
    x = checks.random(16, INTERMEDIATE, dtype=torch.bfloat16, device=CUDA)
    first, again = torch.empty(2, 16, HIDDEN, dtype=torch.bfloat16, device=CUDA)
    kernels.grouped_mm(x, weight, None, room, first)
    for _ in range(200):
        kernels.grouped_mm(x, weight, None, room, again)
        assert torch.equal(first, again)


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_made(kernels: Kernels, kind: str) -> None:
    checks.expand(kernels, CUDA, torch.bfloat16, HIDDEN, INTERMEDIATE, 112, kind, 64, 1000)
    checks.expand(kernels, CUDA, torch.bfloat16, INTERMEDIATE, HIDDEN, 32, kind, 0, INTERMEDIATE)


@pytest.mark.parametrize("n", [1, 7, 64, 256])
@pytest.mark.parametrize("codes", list(MOST_CODES))
def test_rows_are_rounded(kernels: Kernels, codes: torch.dtype, n: int) -> None:
    for dtype in (torch.bfloat16, torch.float32):
        checks.quantize(kernels, CUDA, dtype, n, HIDDEN, codes)
        checks.add_rms_norm_quant(kernels, CUDA, dtype, n, HIDDEN, True, codes)
        checks.gated_quant(kernels, CUDA, dtype, n, INTERMEDIATE, "silu", codes)
        checks.scaled(kernels, CUDA, dtype, n, INTERMEDIATE, True)


@pytest.mark.parametrize("n", [1, 16, MOST_LINES, MOST_LINES + 1, 100, 1100])
def test_blocks_are_multiplied_as_their_twin(kernels: Kernels, n: int) -> None:
    """Each size of a tile, with sums split and whole, and rows that end within a block."""
    for dtype in (torch.bfloat16, torch.float32):
        block_mm(kernels, CUDA, dtype, n, HIDDEN, INTERMEDIATE, has_bias=True)
        block_mm(kernels, CUDA, dtype, n, 2 * INTERMEDIATE, HIDDEN)
        block_mm(kernels, CUDA, dtype, n, 1000, HIDDEN, 40)


@pytest.mark.parametrize("n", [1, 7, 256])
def test_groups_of_rows_are_rounded(kernels: Kernels, n: int) -> None:
    half, codes = torch.bfloat16, torch.float8_e4m3fn
    checks.quantize(kernels, CUDA, half, n, HIDDEN, codes, GROUP)
    checks.add_rms_norm_quant(kernels, CUDA, half, n, HIDDEN, True, codes, GROUP)
    checks.gated_quant(kernels, CUDA, half, n, INTERMEDIATE, "silu", codes, GROUP)


def eight_bits(kind: str, rows: int, columns: int) -> Weight:
    if kind == "blocks":
        return to_device(in_blocks(rows, columns), CUDA)
    scales = torch.rand(rows, 1, device=CUDA) / 64
    if kind == "int8":
        codes = torch.randint(-127, 128, (rows, columns), dtype=torch.int8, device=CUDA)
        return GroupedWeight(codes, scales, activations="int8")
    codes = torch.randn(rows, columns, device=CUDA).to(torch.float8_e4m3fn)
    return GroupedWeight(codes, scales, activations="e4m3")


@pytest.mark.parametrize("n", [1, 16, 17, 300])
@pytest.mark.parametrize("kind", ["int8", "e4m3"])
def test_codes_are_multiplied_with_codes(kernels: Kernels, kind: str, n: int) -> None:
    weight = eight_bits(kind, 2 * INTERMEDIATE, HIDDEN)
    assert isinstance(weight, GroupedWeight)
    linear: Any = DeviceLinears(kernels).make(weight, None, torch.bfloat16)
    x = checks.random(n, HIDDEN, dtype=torch.bfloat16, device=CUDA)
    given = kernels.quantize(x, weight.codes.dtype)
    exact = given.codes[:n].double() @ weight.codes.double().t()
    exact = exact * given.scales * weight.scales[:, 0]
    got = linear(x)
    assert torch.equal(linear(given), got)
    error = (got.double() - exact).norm() / exact.norm()
    # Fast sums of 8-bit floats keep 14 bits or so; what is written has 8.
    assert float(error) < 1e-2


@pytest.mark.parametrize("n", [1, 16])
@pytest.mark.parametrize("kind", ["symmetric", "any order", "int8", "e4m3", "blocks", "2:4"])
def test_a_captured_product_computes_from_what_its_input_holds_now(
    kernels: Kernels, kind: str, n: int
) -> None:
    if kind == "2:4":
        values = torch.randn(HIDDEN, INTERMEDIATE, device=CUDA).bfloat16()
        values[:, ::2] = 0.0
        weight: Weight = SparseWeight(values)
    elif kind in ("int8", "e4m3", "blocks"):
        weight = eight_bits(kind, HIDDEN, INTERMEDIATE)
    else:
        weight = to_device(grouped(kind, HIDDEN, INTERMEDIATE, 112), CUDA)
    linear = DeviceLinears(kernels).make(weight, None, torch.bfloat16)
    x = checks.random(n, INTERMEDIATE, dtype=torch.bfloat16, device=CUDA)
    out = torch.empty(n, HIDDEN, dtype=torch.bfloat16, device=CUDA)
    linear(x, out=out)  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        linear(x, out=out)
    for _ in range(3):
        x.copy_(x.flatten().roll(1).view_as(x) + 1)
        graph.replay()
        assert torch.equal(out, linear(x))


def test_zeros_are_left_out(kernels: Kernels) -> None:
    values = torch.randn(INTERMEDIATE, HIDDEN, device=CUDA).bfloat16()
    values[:, ::4] = values[:, 3::4] = 0.0
    bias = torch.randn(INTERMEDIATE, device=CUDA).bfloat16()
    linear = DeviceLinears(kernels).make(SparseWeight(values), bias, torch.bfloat16)
    assert isinstance(linear, SparseLinear)
    assert linear.nbytes < 0.6 * values.nbytes
    for n in (1, 7, 64, 300):
        x = checks.random(n, HIDDEN, dtype=torch.bfloat16, device=CUDA)
        exact = x.double() @ values.double().t() + bias
        error = (linear(x).double() - exact).norm() / exact.norm()
        assert float(error) < 1e-2
        out = torch.empty(n, INTERMEDIATE, dtype=torch.bfloat16, device=CUDA)
        assert torch.equal(linear(x, out=out), linear(x))


FORMATS = ("awq", "gptq_v2 with an order", "packed with zeros", "floats of 4 bits")


@pytest.mark.parametrize("name", FORMATS)
def test_tokens_of_a_quantized_checkpoint_are_the_cpus(
    make: Make, name: str, tmp_path: Path
) -> None:
    folder = tmp_path / "made"
    written(embedded.folder("nano"), folder, WRITERS[name])
    fields: dict[str, Any] = {"catalog": catalog(), "quantizer": AUTO}
    prompts = mixed_prompts(24, NANO_VOCAB, 300, seed=5)
    reference = greedy(build(folder, dtype="float32", threads=None, **fields), prompts, 24)
    gaps = follow(make(folder, **fields), prompts, reference, CLOSE)
    assert len(gaps) <= 24 * 24 // 12


def test_tokens_of_blocks_are_those_of_a_cpu_that_rounds_inputs_as_well(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A CPU's floats are no measure: rounding inputs moved logits by 2.5."""
    folder = tmp_path / "made"
    written(embedded.folder("nano"), folder, WRITERS["fp8 in blocks"])
    fields: dict[str, Any] = {"catalog": catalog(), "quantizer": PACKED}
    prompts = mixed_prompts(24, NANO_VOCAB, 300, seed=5)
    monkeypatch.setattr(parts, "make_cpu_linear", rounding)
    reference = greedy(build(folder, dtype="float32", threads=None, **fields), prompts, 24)
    gaps = follow(make(folder, **fields), prompts, reference, 2 * CLOSE)
    assert len(gaps) <= 24 * 24 // 12


@pytest.mark.parametrize("element", ["e4m3", "e5m2"])
def test_tokens_over_keys_and_values_of_8_bits_are_the_cpus(make: Make, element: str) -> None:
    """Nano's heads of 64 numbers are FlashInfer's; what it reads is what the kernel has written."""
    codec = StrategyChoice("fp8", {"scale": "none", "format": element})
    prompts = mixed_prompts(24, NANO_VOCAB, 300, seed=5)
    reference = greedy(build(dtype="float32", threads=None, kv_codec=codec), prompts, 24)
    gaps = follow(make(kv_codec=codec), prompts, reference, CLOSE)
    assert len(gaps) <= 24 * 24 // 12


@pytest.mark.parametrize("element", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_keys_and_values_of_8_bits_are_appended(kernels: Kernels, element: torch.dtype) -> None:
    for n in (1, 64):
        checks.rope_append(kernels, CUDA, torch.bfloat16, n, 32, 8, 128, 128, 16, element)


@pytest.mark.parametrize("quantizer", ["int8", "fp8", "int4", "awq"])
def test_launching_a_step_waits_for_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quantizer: str
) -> None:
    folder = embedded.folder("nano")
    fields: dict[str, Any] = {"quantizer": StrategyChoice(quantizer)}
    if quantizer == "awq":
        written(folder, tmp_path / "made", WRITERS[quantizer])
        folder, fields = tmp_path / "made", {"catalog": catalog(), "quantizer": AUTO}
    if quantizer == "fp8":
        fields["kv_codec"] = StrategyChoice("fp8", {"scale": "none"})
    engine = make(folder, max_batch_tokens=128, **fields)
    prompts = mixed_prompts(12, NANO_VOCAB, 200, seed=7)

    def submit() -> None:
        for i, prompt in enumerate(prompts):
            engine.submit(prompt, max_tokens=8 + i, ignore_eos=True)

    submit()
    engine.run()
    runner: Any = engine.core._runner
    launch = runner.launch

    def guarded(batch: Any) -> Any:
        torch.cuda.set_sync_debug_mode("error")
        try:
            return launch(batch)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(runner, "launch", guarded)
    submit()
    done = engine.run()
    assert [a.finished.error for a in done.values() if a.finished] == [None] * 2 * len(prompts)


def test_what_is_measured_is_what_the_codes_take(kernels: Kernels) -> None:
    before = torch.cuda.memory_allocated()
    weight = checks.packed("signed", INTERMEDIATE, HIDDEN, 32, CUDA)
    gc.collect()
    taken = torch.cuda.memory_allocated() - before
    assert weight.nbytes <= taken < weight.nbytes + (2 << 20)
    assert unpack(weight).shape == (HIDDEN, INTERMEDIATE)
