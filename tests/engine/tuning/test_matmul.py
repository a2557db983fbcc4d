"""Matmul tuning: fastest among those that agree with torch."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.model.linears.norm_gate_fusion import Fusion
from gatewayd_engine.model.linears.select_gpu import DenseGpuLinear, DeviceLinears
from gatewayd_engine.tuning import clock as clock_module
from gatewayd_engine.tuning import matmul_candidates as candidates_module
from gatewayd_engine.tuning.matmul import choose_matmuls, measured_sizes
from gatewayd_engine.tuning.matmul_candidates import Candidates, CublasLt, TinyGemm, multiply
from gatewayd_engine.tuning.table import DeviceLost, TunedMachine, TuningTable
from tests.engine.tuning.fake_matmul import Modules, Recording

MACHINE = TunedMachine("a chip", "9.0", {})
CPU = torch.device("cpu")
SIZES = [1, 2, 4, 8, 16, 24, 32, 128]


@pytest.fixture(autouse=True)
def no_handle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates_module, "_handle", lambda: 7)


def linears(
    layers: int, rows: int = 48, columns: int = 64, bias: bool = False
) -> list[DenseGpuLinear]:
    made = []
    for _ in range(layers):
        weight = torch.randn(rows, columns, dtype=torch.bfloat16)
        added = torch.randn(rows).bfloat16() if bias else None
        made.append(DenseGpuLinear(weight, added, TorchKernels(), Fusion()))
    return made


def chosen(
    some: list[DenseGpuLinear],
    modules: Modules,
    clock: Recording,
    sizes: list[int] = SIZES,
    table: TuningTable | None = None,
    seconds: float = 60.0,
) -> dict[int, str]:
    """What the first of them launches, by number of lines."""
    table = TuningTable(MACHINE) if table is None else table
    families: list[Candidates] = [CublasLt(modules, CPU), TinyGemm(modules)]
    told: list[float] = []
    choose_matmuls(some, sizes, families, table, clock, told.append, seconds)
    assert told == sorted(told)
    assert told[-1] == 1.0
    found = {}
    for lines in range(1, max(sizes) + 2):
        modules.launched.clear()
        x = torch.randn(lines, some[0].matrix.shape[1]).bfloat16()
        expected = torch.empty(lines, some[0].matrix.shape[0], dtype=torch.bfloat16)
        multiply(x, some[0].matrix, some[0].bias, expected)
        assert torch.equal(some[0](x), expected)
        assert torch.equal(some[0](x, out=torch.empty_like(expected)), expected)
        if modules.launched:
            found[lines] = modules.launched[-1][0]
    return found


def test_measured_sizes_are_few_and_end_with_the_largest() -> None:
    assert measured_sizes(SIZES) == [1, 8, 16, 32, 128]
    assert measured_sizes([1, 2, 4, 8, 16, 24, 32, 40, 48]) == [1, 8, 16, 32, 48]
    assert measured_sizes([3]) == [3]
    assert measured_sizes(range(1, 1025)) == [1, 8, 16, 32, 64, 128, 256, 512]


@pytest.mark.parametrize("bias", [False, True])
def test_the_fastest_is_launched_at_all_sizes_that_are_captured(bias: bool) -> None:
    modules = Modules()
    clock = Recording(modules, cublaslt_0=9.9, cublaslt_1=9.0, cublaslt_2=9.5, tinygemm2=8.0)
    # From 65 lines on there is no tinygemm2; what is not captured stays torch's.
    found = chosen(linears(3, bias=bias), modules, clock)
    assert found == {**dict.fromkeys(SIZES, "tinygemm2"), 128: "cublaslt 1"}
    assert set(clock.lines) == {1, 8, 16, 32, 128}


def test_what_is_slower_or_hardly_faster_stays_torchs() -> None:
    modules = Modules()
    clock = Recording(modules, cublaslt_0=9.85, cublaslt_1=12.0, tinygemm2=11.0)
    assert chosen(linears(1), modules, clock) == {}


def test_what_computes_something_else_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    modules = Modules()
    modules.wrong, modules.broken = {0}, {1}
    clock = Recording(modules, cublaslt_0=1.0, cublaslt_1=2.0, cublaslt_2=3.0, tinygemm2=4.0)
    with caplog.at_level(logging.INFO):
        assert set(chosen(linears(1), modules, clock, [8]).values()) == {"cublaslt 2"}
    assert "cublaslt 0 is not a candidate for matmul bfloat16 m=8" in caplog.text
    assert "Mismatch" in caplog.text
    assert "cublaslt 1 is not a candidate" in caplog.text


def test_an_algorithm_that_refuses_a_size_in_between_leaves_it_to_torch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    modules = Modules()
    modules.bad_lines = {24}
    for refused in ([24], []):
        modules.refused.clear()
        clock, table = Recording(modules, cublaslt_0=1.0), TuningTable(MACHINE, tmp_path)
        found = chosen(linears(1), modules, clock, table=table)
        assert found == dict.fromkeys([n for n in SIZES if n != 24], "cublaslt 0")
        # The next start knows that, and does not try again.
        assert modules.refused == refused
    assert caplog.text.count("fails its check at 24 rows; torch is used there") == 1


def test_the_host_waits_once_for_each_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules, sizes, waits, item = Modules(), [256, 400, 512], list[int](), torch.Tensor.item
    clock = Recording(modules, cublaslt_1=5.0)
    chosen(linears(1), modules, clock, sizes, TuningTable(MACHINE, tmp_path))

    def counted(tensor: torch.Tensor) -> Any:
        waits.append(tensor.numel())
        return item(tensor)

    families, table = [CublasLt(modules, CPU)], TuningTable(MACHINE, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "item", counted)
        choose_matmuls(linears(1), sizes, families, table, Recording(modules), lambda part: None)
    assert waits == [1] * len(sizes)


@pytest.mark.parametrize("at", ["operands", "check", "clock"])
def test_a_moment_without_memory_costs_one_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, at: str
) -> None:
    modules = Modules()

    def failing(*args: object, **named: object) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    clock: Any = failing if at == "clock" else Recording(modules, cublaslt_1=5.0)
    families, table = [CublasLt(modules, CPU)], TuningTable(MACHINE, tmp_path)
    some = linears(1)
    with monkeypatch.context() as patch:
        if at == "operands":
            patch.setattr(torch, "randn", failing)
        elif at == "check":
            patch.setattr(modules, "mm_bf16_cublaslt_run_with_algo", failing)
        choose_matmuls(some, [8, 16], families, table, clock, lambda part: None)
    assert some[0].launches == {}
    (warning,) = [r.message for r in caplog.records if r.levelno == logging.WARNING]
    assert "too little memory to autotune matmuls" in warning
    assert "48 x 64 at 8 rows, 48 x 64 at 16 rows" in warning
    assert TuningTable(MACHINE, tmp_path).entries == []
    found = chosen(
        linears(1), modules, Recording(modules, cublaslt_1=5.0), [8], TuningTable(MACHINE, tmp_path)
    )
    assert found == {8: "cublaslt 1"}


def test_a_second_start_measures_nothing(tmp_path: Path) -> None:
    modules = Modules()
    first = chosen(
        linears(2),
        modules,
        Recording(modules, cublaslt_1=5.0),
        table=TuningTable(MACHINE, tmp_path),
    )
    clock, table = Recording(modules), TuningTable(MACHINE, tmp_path)
    assert chosen(linears(2), modules, clock, table=table) == first
    assert clock.calls == []
    assert table.measured == 0
    # Algorithms may be others now.
    modules.count = 2
    assert chosen(linears(2), modules, Recording(modules), table=table) == {}
    assert table.measured == 5


def test_a_known_product_that_computes_something_else_is_left_alone_from_then_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    modules = Modules()
    clock = Recording(modules, cublaslt_1=5.0, cublaslt_2=6.0)
    found = chosen(linears(1), modules, clock, [8], TuningTable(MACHINE, tmp_path))
    assert found == {8: "cublaslt 1"}
    modules.wrong = {1}
    for _ in range(2):
        clock = Recording(modules)
        found = chosen(linears(1), modules, clock, [8], TuningTable(MACHINE, tmp_path), seconds=0.0)
        assert found == {8: "cublaslt 2"}
        assert clock.calls == []
    assert caplog.text.count("cublaslt 1 was chosen for matmul bfloat16 m=8") == 1


def test_when_time_is_up_the_rest_is_left_to_the_next_start(tmp_path: Path) -> None:
    modules = Modules()
    clock = Recording(modules, cublaslt_1=5.0)
    assert (
        chosen(linears(1), modules, clock, [8], TuningTable(MACHINE, tmp_path), seconds=0.0) == {}
    )
    assert clock.calls == []
    assert chosen(linears(1), modules, clock, [8], TuningTable(MACHINE, tmp_path)) == {
        8: "cublaslt 1"
    }
    # What is known is used, however little time there is.
    again = TuningTable(MACHINE, tmp_path)
    assert chosen(linears(1), modules, clock, [8], again, seconds=0.0) == {8: "cublaslt 1"}


def test_each_shape_is_measured_over_its_own_layers() -> None:
    modules = Modules()
    clock = Recording(modules, cublaslt_1=5.0)
    narrow, wide = linears(4), linears(2, rows=80)
    found = chosen([*narrow, *wide], modules, clock, [8])
    assert found == {8: "cublaslt 1"}
    assert all(set(linear.launches) == {8} for linear in (*narrow, *wide))
    # Five candidates each, of launches enough to be timed.
    assert clock.calls == [32] * 10


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_operands_that_a_module_would_not_check_stay_torchs(dtype: torch.dtype) -> None:
    modules = Modules()
    clock = Recording(modules, cublaslt_1=5.0, tinygemm2=4.0)
    # Seven columns are no multiple of 16 bytes; nor is any row but the first aligned.
    weight = torch.randn(48, 64 if dtype == torch.float32 else 7).to(dtype)
    linear = DenseGpuLinear(weight, None, TorchKernels(), Fusion())
    choose_matmuls(
        [linear],
        [8],
        [CublasLt(modules, CPU), TinyGemm(modules)],
        TuningTable(MACHINE),
        clock,
        print,
    )
    assert linear.launches == {}


def test_strided_operands_go_to_torch() -> None:
    modules = Modules()
    (linear,) = linears(1)
    assert chosen([linear], modules, Recording(modules, cublaslt_1=5.0), [8]) == {8: "cublaslt 1"}
    modules.launched.clear()
    wide = torch.randn(8, 128).bfloat16()
    expected = linear(wide[:, :64].contiguous())
    modules.launched.clear()
    assert torch.equal(linear(wide[:, :64]), expected)
    out = torch.empty(8, 96, dtype=torch.bfloat16)
    assert torch.equal(linear(wide[:, :64].contiguous(), out=out[:, :48]), expected)
    assert modules.launched == []


def test_a_device_that_is_lost_ends_the_start_and_the_next_leaves_the_candidate_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = Modules()
    modules.broken = {0}
    clock = Recording(modules, tinygemm2=5.0)
    monkeypatch.setattr(clock_module, "_is_lost", lambda device: True)
    with pytest.raises(DeviceLost, match="cublaslt 0"):
        chosen(linears(1), modules, clock, [8], TuningTable(MACHINE, tmp_path))
    assert chosen(linears(1), modules, clock, [8], TuningTable(MACHINE, tmp_path)) == {
        8: "tinygemm2"
    }


def test_a_device_that_is_lost_at_a_size_in_between_ends_the_start_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules, sizes = Modules(), [16, 24, 32]
    clock = Recording(modules, cublaslt_0=5.0, tinygemm2=6.0)
    found = chosen(linears(1), modules, clock, sizes, TuningTable(MACHINE, tmp_path))
    assert found == dict.fromkeys(sizes, "cublaslt 0")
    modules.bad_lines = {24}
    monkeypatch.setattr(clock_module, "_is_lost", lambda device: True)
    with pytest.raises(DeviceLost, match="cublaslt 0"):
        chosen(linears(1), modules, clock, sizes, TuningTable(MACHINE, tmp_path))
    found = chosen(linears(1), modules, clock, sizes, TuningTable(MACHINE, tmp_path))
    assert found == dict.fromkeys(sizes, "tinygemm2")


def test_only_matrices_in_use_are_chosen_for() -> None:
    made = DeviceLinears(TorchKernels())
    kept = made.make(torch.randn(8, 8), None, torch.float32)
    made.make(torch.randn(8, 8), None, torch.float32)
    assert made.dense == [kept]
