"""``gatewayd warmup`` table: winners and their ranges of rows."""

from __future__ import annotations

import io

from rich.console import Console

from gatewayd.cli.warmup.table import table_of
from gatewayd_engine.tuning.table import TableContents, TableEntry, TunedMachine

MACHINE = TunedMachine("NVIDIA H200, 132 multiprocessors", "9.0", {})


def entry(lines: int, choice: str, **times: float | None) -> TableEntry:
    named = {name.replace("_", " "): time for name, time in times.items()}
    sizes = {"m": lines, "n": 6144, "k": 4096, "bias": 0}
    return TableEntry("matmul", "bfloat16", sizes, "torch", choice, named)


def test_neighbours_with_one_choice_are_one_line() -> None:
    contents = TableContents(
        MACHINE,
        [
            entry(64, "torch", torch=20.0, cublaslt_3=20.1),
            entry(1, "tinygemm2", torch=16.0, tinygemm2=14.0),
            entry(8, "tinygemm2", torch=16.5, tinygemm2=15.0, cublaslt_3=None),
            entry(256, "cublaslt 3", torch=40.0, cublaslt_3=30.0),
            TableEntry(
                "decode attention", "bfloat16", {"lines": 8}, "fa2", "xqa", {"fa2": 9, "xqa": 8}
            ),
        ],
    )
    out = io.StringIO()
    Console(file=out, width=200).print(table_of(contents))
    title, head, *lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert title == "Chosen by measuring on NVIDIA H200, 132 multiprocessors"
    assert head.split() == ["operation", "shape", "lines", "choice", "default", "saves"]
    cells = [[cell for cell in line.split("  ") if cell] for line in lines]
    assert [[cell.strip() for cell in row] for row in cells] == [
        ["decode attention, bfloat16", "lines 8", "xqa", "8.0 µs", "fa2", "9.0 µs", "11%"],
        [
            "matmul, bfloat16", "n 6144, k 4096, bias 0", "1 to 8", "tinygemm2", "14.0 to 15.0 µs",
            "torch", "16.0 to 16.5 µs", "12% to 9%",
        ],
        [
            "matmul, bfloat16", "n 6144, k 4096, bias 0", "9 to 64", "torch", "20.0 µs", "torch",
            "20.0 µs",
        ],
        [
            "matmul, bfloat16", "n 6144, k 4096, bias 0", "65 to 256", "cublaslt 3", "30.0 µs",
            "torch", "40.0 µs", "25%",
        ],
    ]  # fmt: skip
