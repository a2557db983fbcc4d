"""GPU probe, rehearsed on a CPU: rows launch as on a GPU, and none stops the others."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.tuning import clock
from gatewayd_engine.tuning.table import DeviceLost
from tests.gpu import probe
from tests.gpu.kit.lock import ROOT
from tests.gpu.probing import bench as benches
from tests.gpu.probing import libraries
from tests.gpu.probing.attention import Contexts
from tests.gpu.probing.bench import Bench
from tests.gpu.probing.libraries import Absent
from tests.gpu.probing.probe import Flash
from tests.gpu.probing.shapes import LLAMA, TINY
from tests.gpu.probing.trial import Tensors, Trial

PROBE = """
import runpy, sys, types
from tests.engine.attention import fake_flashinfer

fake_flashinfer.IS_GUARDED = False
def have(name, function, found):
    sys.modules[name] = types.ModuleType(name)
    setattr(sys.modules[name], function, lambda *_: types.SimpleNamespace(try_load=lambda: found))
sys.modules["flashinfer"] = fake_flashinfer
have("flashinfer.prefill", "_gen_batch_prefill_primary_module", True)
have("flashinfer.decode", "trtllm_batch_decode_with_kv_cache", None)
have("flashinfer.jit.xqa", "gen_xqa_module", None)
have("flashinfer.jit.gemm.core", "gen_mm_bf16_cublaslt_module", None)
have("flashinfer.gemm.routergemm", "gen_tinygemm2_module", None)
BEFORE
sys.argv = ["tests/gpu/probe.py", *sys.argv[1:]]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""With what stands for FlashInfer, whose wrappers say what is wrong with a call."""
OTHER_NAME = """
from gatewayd_engine.kernels.torch_kernels import TorchKernels
from tests.gpu.probing import device

class Others(TorchKernels):
    can_launch_early = True
    def gated(self, gates, function):
        return super().gated(gates.flip(0), function)
    def gather(self, lines):
        pass

device._interpreted = Others
"""
"""Kernels of which one computes something else, and one has another signature."""
FATAL = """
import os, threading
from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.tuning import clock
from tests.gpu.probing import bench, device

lost = []
def refuse(*_):
    if lost:
        raise RuntimeError("an illegal memory access")

class Others(TorchKernels):
    def gated(self, *_):
        lost.append(self)
        refuse()
    def gather(self, *arguments):
        if threading.current_thread() is threading.main_thread():
            os.kill(os.getpid(), 9)

clock._is_lost = lambda device: bool(lost)
bench.Bench._release = refuse
device._interpreted = Others
"""
"""A kernel that takes the device down where it is launched, and one that ends the process."""
ABSENT = {"xqa", "xqa e4m3", "cublaslt"}
"""What a CPU has nothing for; ``test_flashinfer_signatures`` compares their signatures."""
BOTH = ("", " early")
NAMES = {
    "attention": {
        f"{kernel}{element}{how}"
        for element in ("", " e4m3")
        for kernel, ways in (("triton", BOTH), ("fa2", (*BOTH, " whole", " whole early")))
        for how in ways
    },
    "attention, chunks": {"triton", "triton early"},
    "latents": {"triton", "triton early"},
    "latents, prompt": {"triton"},
    "small kernels": {
        f"{kernel}{how}"
        for kernel in (
            *("norm and add", "gate", "rope and append", "gather"),
            *("sample greedy", "sample filtered"),
        )
        for how in BOTH
    },
    "norm, qkv": {"fused", "fused early", "apart", "apart early"},
    "norm, gate_up, gate": {"fused", "fused early", "apart", "apart early"},
    **{f"product {name}": {"cublas"} for name in LLAMA.matrices},
    **{
        f"low-bit {name}": {"bf16", "int8", "w4a16", "fp8", "fp8 blocks"}
        for name in ("gate_up", "down")
    },
    "verification": {"attention", "attention early", "slots", "accept", "keep path"},
    "experts": {"route", "gates", "answers", "sum"},
}


def rehearsed(
    out: Path, *options: str, before: str = ""
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """In a process of its own: kernels are interpreted if Triton is told so before its import."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE.replace("BEFORE", before), *options],
        cwd=ROOT,
        env={**os.environ, "FIRST_DEVICE": "cpu", "OUT": str(out)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done, json.loads((out / "probe.json").read_text())


def test_each_row_computes_on_a_tiny_shape_what_its_twin_does(tmp_path: Path) -> None:
    done, document = rehearsed(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, set[str]] = {}
    for row in document["rows"]:
        if "absent" in row:
            assert row["name"] in ABSENT, row
        else:
            assert row["differs_by"] < 2e-2, row
            assert row["microseconds"] > 0, row
            found.setdefault(row["place"], set()).add(row["name"])
            assert f"  {row['name']}" in done.stdout
    assert found == NAMES
    at = {(row["lines"], row["context"]) for row in document["rows"] if "context" in row}
    assert at == {(lines, context) for lines in TINY.batches for context in TINY.contexts}
    assert document["chip"] == "rehearsal on a CPU"
    assert document["versions"]["torch"] == torch.__version__
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]{8}\+00:00", document["date"])
    assert not document["left_out"]


def test_a_kernel_of_another_signature_fails_and_one_that_differs_is_said(tmp_path: Path) -> None:
    done, document = rehearsed(tmp_path, "2", "--parts", "small,experts", before=OTHER_NAME)
    assert done.returncode == 1, done.stdout + done.stderr
    rows = {row["name"]: row for row in document["rows"]}
    assert {name for name, row in rows.items() if "error" in row} == {"gather", "gather early"}
    assert "TypeError" in rows["gather"]["error"]
    assert {name for name, row in rows.items() if "differs" in row} == {"gate", "gate early"}
    assert re.search(r"  gate +[\d.]+ us  DIFFERS by \d", done.stdout)
    assert "small kernels lines 2, gather: TypeError" in done.stdout
    # What comes behind them is measured.
    assert all("microseconds" in rows[name] for name in ("sample greedy", "sum"))


def test_a_kernel_that_takes_the_device_down_is_named_and_costs_only_itself(tmp_path: Path) -> None:
    options = ("1,2", "--parts", "small,experts", "--compilers", "2")
    done, document = rehearsed(tmp_path, *options, before=FATAL)
    assert done.returncode == 1, done.stdout + done.stderr
    rows = {(row["name"], row["lines"]): row for row in document["rows"]}
    assert len(rows) == len(document["rows"])
    assert {at for at, row in rows.items() if row.get("lost")} == {("gate", 1), ("gather", 1)}
    assert "the device was lost to gate: an illegal memory access" in rows["gate", 1]["error"]
    assert rows["gather", 1]["error"] == "its process ended with -9"
    for name in ("gate", "gather"):  # on another size, which nothing is launched for any more
        assert rows[name, 2]["left_out"] == "the device was lost to it"
    # What else there is was measured: of the same part behind them, and of the next.
    small = NAMES["small kernels"] - {"gate", "gather"}
    rest = {(name, lines) for name in small if " early" not in name for lines in (1, 2)}
    rest |= {(name, 3) for name in NAMES["experts"]}
    assert {at for at, row in rows.items() if "microseconds" in row} == rest
    first, *others = document["lost"]
    assert "lost to small, before its rows" in first
    assert len(others) == 2
    assert "failed or different:\nsmall kernels lines 1, gate: DeviceLost" in done.stdout


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bench:
    """One whose kernels are the twins."""
    monkeypatch.setattr(benches, "kernels_of", lambda device: TorchKernels())
    return Bench("cpu", tmp_path, (), 0)


def document(folder: Path) -> dict[str, Any]:
    made: dict[str, Any] = json.loads((folder / "probe.json").read_text())
    return made


def one() -> Trial:
    def answer() -> Tensors:
        return (torch.ones(1),)

    return Trial([answer], answer, answer)


def raising(error: Exception) -> Trial:
    raise error


def test_a_lost_device_ends_with_what_was_measured(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def rows(at: Bench) -> None:
        with at.at("rows"):
            at.row("first", one)
            at.row("harmless", lambda: raising(ValueError("no")))
            monkeypatch.setattr(clock, "_is_lost", lambda device: True)
            at.row("fatal", lambda: raising(RuntimeError("an illegal memory access")))
            at.row("never", one)

    with pytest.raises(DeviceLost):
        bench.part("rows", rows, 60)
    made = document(tmp_path)
    assert [row["name"] for row in made["rows"]] == ["first", "harmless", "fatal"]
    assert "microseconds" in made["rows"][0]
    assert made["rows"][1]["error"] == "ValueError: no"
    assert "lost to fatal: an illegal memory access" in made["lost"][0]


def test_what_is_absent_is_no_failure_and_a_missing_module_is_one(bench: Bench) -> None:
    def rows(at: Bench) -> None:
        with at.at("rows"):
            at.row("compiled", lambda: raising(Absent("it is not compiled")))
            at.row("ours", lambda: raising(ImportError("No module named 'gatewayd_engin'")))

    bench.part("rows", rows, 60)
    assert bench.failed == ["rows, ours: ImportError: No module named 'gatewayd_engin'"]


@pytest.mark.parametrize("is_installed", [False, True])
def test_a_flashinfer_that_is_installed_has_what_is_called(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_installed: bool
) -> None:
    """An empty one stands for a version that has renamed everything."""
    found = ModuleSpec("flashinfer", None) if is_installed else None
    monkeypatch.setattr(libraries, "find_spec", lambda name: found)
    monkeypatch.setitem(sys.modules, "flashinfer", ModuleType("flashinfer") if found else None)
    contexts = Contexts(bench, 1, TINY.page)
    flash = Flash(bench.device)

    def rows(at: Bench) -> None:
        at.library("tinygemm2", libraries.tinygemm2)
        with at.at("rows"):
            at.row("fa2", lambda: flash.by_fa2(contexts, is_whole=False, is_early=False))
            at.row("xqa", lambda: flash.by_xqa(contexts))

    bench.part("rows", rows, 60)
    assert len(bench.failed) == 3 * is_installed, bench.failed
    given = {row["name"]: row for row in document(tmp_path)["rows"]}
    assert ("error" if is_installed else "absent") in given["fa2"]


def test_a_part_whose_time_is_over_says_what_was_left_out(bench: Bench, tmp_path: Path) -> None:
    def rows(at: Bench) -> None:
        with at.at("rows", lines=1):
            at.row("one", one)

    bench.part("late", rows, -1)
    bench.part("in time", rows, 60)
    made = document(tmp_path)
    assert made["left_out"] == ["late: from rows lines 1 on"]
    assert len(made["rows"]) == 1


def test_a_gpu_is_asked_for_where_nothing_is_rehearsed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["probe.py", "--child"])
    monkeypatch.delenv("FIRST_DEVICE", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert probe.main() == 2
    assert capsys.readouterr().err == "there is no GPU: FIRST_DEVICE=cpu rehearses\n"
