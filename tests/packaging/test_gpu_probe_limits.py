"""GPU probe limits: kernels that take too long to compile or run."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gatewayd_engine.kernels.base import Kernels
from gatewayd_engine.kernels.torch_kernels import TorchKernels
from tests.gpu.probing import bench as benches
from tests.gpu.probing import processes
from tests.gpu.probing.bench import Bench
from tests.gpu.probing.processes import Processes
from tests.gpu.probing.shapes import TINY
from tests.gpu.probing.trial import Tensors, Trial

SLOW = 60.0
"""Seconds that a slow compiler takes."""
CHILD = """
import sys, time
from pathlib import Path
from tests.gpu.probing.document import Document

made = Document(Path(OUT), {}, goes_on="--goes-on" in sys.argv)
for part in sys.argv[sys.argv.index("--parts") + 1].split(","):
    made.begin(part)
    for name in ("one", "two", "three"):
        where = {"place": part}
        if made.known(where, name) is None:
            row = made.row(where, name)
            BEFORE
            row["microseconds"] = 1.0
    made.end(part)
    made.write()
"""


def ones(kernels: Kernels) -> Tensors:
    return (torch.ones(1),)


def document(folder: Path) -> dict[str, Any]:
    made: dict[str, Any] = json.loads((folder / "probe.json").read_text())
    return made


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bench:
    """One that compiles in two threads."""
    monkeypatch.setattr(benches, "kernels_of", lambda device: TorchKernels())
    return Bench("cpu", tmp_path, (), 2)


def test_kernels_are_launched_over_short_contexts_before_they_are_timed(
    bench: Bench, tmp_path: Path
) -> None:
    seen: list[tuple[int, ...]] = []

    def rows(at: Bench) -> None:
        contexts = at.contexts

        def compute(kernels: Kernels) -> Tensors:
            seen.append(contexts)
            return (torch.ones(1),)

        def theirs() -> Trial:
            raise ValueError("it is not launched ahead")

        with at.at("rows"):
            at.kernel("ours", compute, compute)
            at.row("theirs", theirs)

    bench.part("rows", rows, 60)
    assert seen == [(TINY.page,)] + [TINY.contexts] * 3  # answer, wanted, and timed
    assert [row["name"] for row in document(tmp_path)["rows"]] == ["ours", "theirs"]


def test_a_slow_compiler_costs_its_own_rows_alone(bench: Bench, tmp_path: Path) -> None:
    end, main = threading.Event(), threading.main_thread()

    def slow(kernels: Kernels) -> Tensors:
        if threading.current_thread() is not main:
            end.wait(SLOW)
        return ones(kernels)

    def rows(at: Bench) -> None:
        for lines in (1, 2, 3):  # there is no thread for the last
            with at.at("rows", lines=lines):
                at.kernel("slow", slow, slow)
                at.kernel("quick", ones, ones)

    began = time.monotonic()
    bench.part("rows", rows, 2)
    bench.part("others", lambda at: at.library("other", lambda: None), 1)
    took = time.monotonic() - began
    end.set()
    assert took < SLOW / 2
    made = document(tmp_path)
    assert made["done"] == ["rows", "others"]
    found = {
        name: [row for row in made["rows"] if row["name"] == name] for name in ("slow", "quick")
    }
    assert all(row["left_out"] == "it is still being compiled" for row in found["slow"])
    assert len(made["left_out"]) == len(found["slow"]) == 3
    assert all("microseconds" in row for row in found["quick"])
    assert not bench.failed


def test_kernels_are_compiled_ahead_without_being_launched(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[bool, bool]] = []

    class Function:
        def run(self, *, grid: tuple[int, ...], warmup: bool) -> None:
            seen.append((threading.current_thread() is threading.main_thread(), warmup))

    monkeypatch.setitem(sys.modules, "triton.runtime.jit", SimpleNamespace(JITFunction=Function))

    def launch(kernels: Kernels) -> Tensors:
        Function().run(grid=(1,), warmup=False)
        return ones(kernels)

    def rows(at: Bench) -> None:
        with at.at("rows"):
            at.kernel("ours", launch, launch)

    bench.part("rows", rows, 60)
    bench.part("again", rows, 60)
    assert seen == [(False, True), *[(True, False)] * 3] * 2
    assert not bench.failed


def measured(out: Path, what: str, seconds: float) -> tuple[int, dict[str, Any]]:
    child = CHILD.replace("OUT", repr(str(out))).replace("BEFORE", what)
    status = Processes([sys.executable, "-c", child], out).measure(["a", "b"], seconds)
    return status, document(out)


def test_a_kernel_that_hangs_costs_its_own_row(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(processes, "_SILENT", 3.0)
    status, made = measured(tmp_path, "if (part, name) == ('a', 'two'): time.sleep(60)", 30)
    assert status == 1
    found = [(row["place"], row["name"], row.get("lost", False)) for row in made["rows"]]
    assert found == [
        *(("a", "one", False), ("a", "two", True)),
        *(("b", name, False) for name in ("one", "two", "three")),
        ("a", "three", False),
    ]
    assert made["failed"] == ["a, two: nothing came of it for 3 s"]
    assert not made["left_out"]


def test_what_there_is_no_time_for_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(processes, "_START", 0.5)
    status, made = measured(tmp_path, "if name == 'two': time.sleep(60)", 1)
    assert status == 1
    assert made["failed"] == ["a, two: it was still busy when all time was over"]
    assert made["left_out"] == [f"{part}: no time for another process" for part in ("b", "a")]


def test_a_process_that_comes_to_no_part_ends_the_probe(tmp_path: Path) -> None:
    (tmp_path / "probe.json").write_text("{}")
    child = [sys.executable, "-c", "raise SystemExit(2)"]
    assert Processes(child, tmp_path).measure(["a", "b"], 30) == 2
    assert not (tmp_path / "probe.json").exists()
