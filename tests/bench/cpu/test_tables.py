"""CPU comparison: goals, tables, and records from which a cut run continues."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.bench.cpu.goals import goal
from tests.bench.cpu.models import ServedFile
from tests.bench.cpu.processor import name_of
from tests.bench.cpu.record import Cell, Record
from tests.bench.cpu.table import label, markdown, rows
from tests.bench.cpu.workloads import KINDS, workloads

HEADER: dict[str, Any] = {
    "cpu": "EPYC (znver3)",
    "cores": 2,
    "kind": "avx2",
    "name": "AVX2",
    "contestants_options": "",
    "python": "3.11.7",
    "load_before": 0.1,
    "date": "2026-11-27",
    "commit": "052a7e77",
    "command": "python -m tests.bench.cpu",
}


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return Record(tmp_path / "out" / "cpu.jsonl", HEADER)


def lines_of(record: Record) -> list[str]:
    """Rows of the table, without its head."""
    return markdown(record, [*rows(record)]).splitlines()[6:]


def test_figures_are_medians_and_ratios_those_of_the_same_rounds(record: Record) -> None:
    cell = Cell("nano", "f32", "concurrency 1")
    for turn, (ours, theirs) in enumerate([(400.0, 200.0), (300.0, 300.0), (440.0, 400.0)]):
        record.add(cell, "ours", turn, {"tok/s": ours})
        record.add(cell, "llama", turn, {"tok/s": theirs})
    # A round of one side alone has nothing to be compared with.
    record.add(cell, "ours", 3, {"tok/s": 9999.0})
    assert lines_of(record) == [
        "| concurrency 1, tok/s | 400 / 300 | llama.cpp | 1.33 | 1.00 to 2.00 | 1.2 x: met |"
    ]


def test_of_latencies_and_memory_less_is_better(record: Record) -> None:
    busy = Cell("nano", "f32", "concurrency 8", "a process that spins")
    record.add(busy, "ours", 0, {"TPOT p50, ms": 4.0, "TPOT p99, ms": 20.0, "tok/s": 1.0})
    record.add(busy, "llama", 0, {"TPOT p50, ms": 8.0, "TPOT p99, ms": 10.0, "tok/s": 9.0})
    start = Cell("1b", "q4_0", "warm start")
    record.add(start, "ours", 0, {"ready, s": 2.0, "peak MiB": 1500.0})
    record.add(start, "llama", 0, {"ready, s": 1.0, "peak MiB": 750.0})
    during = "concurrency 8, beside a process that spins, TPOT"
    assert lines_of(record) == [
        f"| {during} p50, ms | 4 / 8 | llama.cpp | 2.00 | one |  |",
        f"| {during} p99, ms | 20 / 10 | llama.cpp | 0.50 | one |  |",
        "| 1B Q4_0, warm start, ready, s | 2 / 1 | llama.cpp | 0.50 | one |  |",
        "| 1B Q4_0, warm start, peak MiB | 1,500 / 750 | llama.cpp | 0.50 | one |  |",
    ]


def test_generate_of_a_batch_is_beside_as_many_requests(record: Record) -> None:
    record.add(Cell("nano", "f32", "concurrency 32"), "ours", 0, {"tok/s": 1999.0})
    record.add(Cell("nano", "f32", "batch 32"), "generate", 0, {"tok/s": 1000.0})
    assert lines_of(record) == [
        "| batch 32, tok/s | 1,999 / 1,000 | `generate` | 2.00 | one | 2 x: missed |"
    ]


def test_a_large_model_decodes_and_reads_prompts_in_rows_of_their_own(record: Record) -> None:
    both = {"tok/s": 10.0, "decode tok/s": 20.0, "prompt tok/s": 30.0, "requests/s": 40.0}
    # Tables find their figures by the names of workloads.
    for workload in workloads("1b", KINDS, (1,)):
        for name in ("ours", "llama"):
            record.add(Cell("1b", "q8_0", workload.name), name, 0, both)
    found = [(row.label, row.goal, row.is_met) for row in rows(record)]
    assert found == [
        ("1B Q8_0, concurrency 1, tok/s", None, None),
        ("1B Q8_0, concurrency 1, decode tok/s", 1.0, True),
        ("1B Q8_0, prompt of 64, prompt tok/s", 2.0, False),
        ("1B Q8_0, prompt of 1,024, prompt tok/s", 2.0, False),
        ("1B Q8_0, 12 requests, 700 shared + 10 own, requests/s", None, None),
    ]


@pytest.mark.parametrize(
    ("cell", "figure", "expected"),
    [
        (Cell("nano", "f32", "concurrency 64"), "tok/s", 2.0),
        (Cell("nano", "f32", "200 requests, 700 shared + 10 own"), "requests/s", 3.0),
        (Cell("nano", "q8_0", "concurrency 64"), "tok/s", None),
        (Cell("nano", "f32", "concurrency 8", "a process that spins"), "TPOT p50, ms", None),
        (Cell("1b", "bf16", "concurrency 64"), "decode tok/s", 1.0),
        (Cell("1b", "q4_k", "concurrency 8"), "decode tok/s", 1.3),
        (Cell("1b", "q4_k", "concurrency 32"), "decode tok/s", None),
        (Cell("1b", "q4_0", "prompt of 64"), "prompt tok/s", 2.0),
    ],
)
def test_goals(cell: Cell, figure: str, expected: float | None) -> None:
    assert goal(cell, figure) == expected


def test_every_goal_is_of_a_workload_that_is_measured() -> None:
    """A renamed workload would silently have no goal."""
    levels = (1, 8, 32, 64)
    for model, scheme, figure, count in (
        ("nano", "f32", "tok/s", 4),
        ("nano", "f32", "requests/s", 1),
        ("1b", "q8_0", "decode tok/s", 2),
        ("1b", "q8_0", "prompt tok/s", 2),
    ):
        kind = {"requests/s": "shared", "prompt tok/s": "prompt"}.get(figure, "decode")
        cells = [Cell(model, scheme, one.name) for one in workloads(model, (kind,), levels)]
        assert sum(goal(cell, figure) is not None for cell in cells) == count


def test_the_rows_that_the_readme_quotes_have_no_prefix() -> None:
    assert label(Cell("nano", "f32", "concurrency 32"), "tok/s") == "concurrency 32, tok/s"
    assert label(Cell("nano", "bf16", "concurrency 32"), "tok/s").startswith("nano bf16, ")


def test_a_record_continues_where_it_was_cut(tmp_path: Path) -> None:
    path, cell = tmp_path / "cpu.jsonl", Cell("nano", "f32", "concurrency 1")
    first = Record(path, HEADER)
    first.add(cell, "ours", 0, {"tok/s": 4.0})
    again = Record(path, HEADER | {"date": "2026-11-28", "load_before": 3.0})
    assert again.has(cell, "ours", 0)
    assert not again.has(cell, "ours", 1)
    assert not again.has(cell, "llama", 0)
    again.add(cell, "llama", 0, {"tok/s": 2.0})
    assert again.header["date"] == "2026-11-27"
    assert Record(path, HEADER).rounds(cell, "llama") == {0: {"tok/s": 2.0}}


def test_a_line_that_was_cut_is_measured_once_more(tmp_path: Path) -> None:
    path, cell = tmp_path / "cpu.jsonl", Cell("nano", "f32", "concurrency 1")
    Record(path, HEADER).add(cell, "ours", 0, {"tok/s": 4.0})
    with path.open("a") as file:
        file.write('{"model": "nano", "sch')
    again = Record(path, HEADER)
    again.add(cell, "ours", 1, {"tok/s": 5.0})
    assert Record(path, HEADER).rounds(cell, "ours") == {0: {"tok/s": 4.0}, 1: {"tok/s": 5.0}}


@pytest.mark.parametrize(
    ("changed", "named"), [({"cpu": "Xeon"}, "Xeon"), ({"contestants_options": "x"}, "'x'")]
)
def test_a_record_of_another_machine_is_not_continued(
    tmp_path: Path, changed: dict[str, str], named: str
) -> None:
    Record(tmp_path / "cpu.jsonl", HEADER)
    with pytest.raises(ValueError, match=named):
        Record(tmp_path / "cpu.jsonl", HEADER | changed)


@pytest.mark.parametrize("line", ["", "[]", '{"header": 1}', "x"])
def test_what_is_no_record_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "cpu.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(ValueError, match="is no record"):
        Record(path, HEADER)


def test_a_line_within_a_record_that_is_no_measurement_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cpu.jsonl"
    path.write_text(json.dumps({"header": HEADER}) + '\n{"model": "nano"}\n{}\n')
    with pytest.raises(ValueError, match="line 2"):
        Record(path, HEADER)


def test_names_of_processors() -> None:
    assert name_of("avx2", "flags: avx2 amx_tilex") == "AVX2"
    assert name_of("avx512", "flags: avx2 amx_tile fma") == "AVX-512 with AMX"
    assert name_of(None, "") == "in torch"


def test_only_nano_in_f32_is_served_without_its_file(tmp_path: Path) -> None:
    file = ServedFile("nano", "f32", tmp_path)
    assert (file.options(), file.environment()) == ([], {})
    file = ServedFile("1b", "q4_0", tmp_path)
    assert file.options() == ["--model", str(tmp_path / "1b" / "q4_0")]
    assert file.environment() == {"GATEWAYD_QUANTIZER__GGUF__PACKED": "true"}
    assert file.gguf.parent == tmp_path / "1b" / "q4_0"
