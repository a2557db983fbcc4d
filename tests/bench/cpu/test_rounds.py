"""CPU comparison: whose turn it is, which processes are started, and what is not measured again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.bench.cpu import busy, load, speed
from tests.bench.cpu.contestants import Contestants
from tests.bench.cpu.models import ServedFile
from tests.bench.cpu.record import Cell, Record
from tests.bench.cpu.test_tables import HEADER
from tests.bench.cpu.workloads import Workload, latency, workloads
from tests.bench.servers import RunningServer

FILE = ServedFile("nano", "q8_0")


class _Fakes(Contestants):
    """Servers that only say that they were started."""

    @contextmanager
    def start(
        self, name: str, file: ServedFile, width: int, log: Path, kernels: Path | None = None
    ) -> Iterator[RunningServer]:
        happened.append(f"{name} starts for {width}")
        yield RunningServer(name, 1)
        happened.append(f"{name} stops")


happened: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    happened.clear()

    def figures(url: str, workload: Workload, corpus: Sequence[int], seed: str) -> dict[str, float]:
        happened.append(workload.name)
        return {"tok/s": 1.0}

    @contextmanager
    def spinning(load: str) -> Iterator[None]:
        happened.append(f"+ {load}")
        yield

    def generate(prompts: Sequence[object]) -> dict[int, float]:
        happened.append(f"generate {len(prompts)}")
        return {1: 1.0, 32: 2.0}

    monkeypatch.setattr(load, "figures", figures)
    monkeypatch.setattr(speed, "generate", generate)
    monkeypatch.setattr(speed, "spinning", spinning)


def rounds(path: Path, count: int, *names: str) -> speed.Rounds:
    contestants = _Fakes(Path("llama-server"), 2, ())
    return speed.Rounds(Record(path / "cpu.jsonl", HEADER), contestants, names, count, [1, 2])


def test_contestants_alternate_and_a_shared_prefix_has_a_process_of_its_own(
    tmp_path: Path,
) -> None:
    kinds = ("decode", "shared")
    rounds(tmp_path, 2, "ours", "llama").compare(FILE, workloads("nano", kinds, (1, 8)))
    shared = "200 requests, 700 shared + 10 own"

    def turn(name: str) -> list[str]:
        first = [f"{name} starts for 8", "concurrency 1", "concurrency 8", f"{name} stops"]
        return [*first, f"{name} starts for 16", shared, f"{name} stops"]

    assert happened == [*turn("ours"), *turn("llama"), *turn("llama"), *turn("ours")]


def test_only_what_is_missing_is_measured(tmp_path: Path) -> None:
    before = rounds(tmp_path, 1, "ours", "llama")
    before.record.add(Cell("nano", "q8_0", "concurrency 1"), "ours", 0, {"tok/s": 1.0})
    for level in (1, 8):
        cell = Cell("nano", "q8_0", f"concurrency {level}")
        before.record.add(cell, "llama", 0, {"tok/s": 1.0})
    again = rounds(tmp_path, 1, "ours", "llama")
    again.compare(FILE, workloads("nano", ("decode",), (1, 8)))
    # As many slots as if all were measured.
    assert happened == ["ours starts for 8", "concurrency 8", "ours stops"]


def test_generate_has_no_server_and_no_quantized_file(tmp_path: Path) -> None:
    one = rounds(tmp_path, 1, "generate")
    for file in (FILE, ServedFile("nano", "f32")):
        one.compare(file, workloads("nano", ("decode",), (1,)))
    assert happened == ["generate 64"]
    assert one.record.rounds(Cell("nano", "f32", "batch 32"), "generate") == {0: {"tok/s": 2.0}}


def test_beside_another_process_the_same_is_measured_as_without(tmp_path: Path) -> None:
    one = rounds(tmp_path, 1, "generate", "ours")
    one.compare_busy(FILE, [latency("nano", 1)])
    assert [line for line in happened if line.startswith("+")] == [
        f"+ {load}" for load in busy.LOADS
    ]
    assert happened.count("concurrency 1") == len(busy.LOADS)
    assert {cell.load for cell in one.record.cells()} == {*busy.LOADS}
