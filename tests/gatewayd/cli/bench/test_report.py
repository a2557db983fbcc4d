"""Benchmark report: fits a terminal, and its JSON holds the table's values."""

from __future__ import annotations

import io

from rich.console import Console

from gatewayd.cli.bench.plot import draw
from gatewayd.cli.bench.record import RequestRecord
from gatewayd.cli.bench.report import as_document, detail_table, error_lines, sweep_table
from gatewayd.cli.bench.stats import Level, summarize


def level(value: float, ttft: float, error: str | None = None) -> Level:
    good = RequestRecord(0.0, 0.0, [ttft, ttft + 0.25], ttft + 0.25, 10, 4, 2)
    records = [good, RequestRecord(0.0, 0.0, [], 1.0, error=error)] if error else [good, good]
    return summarize("concurrency", value, records)


def text_of(table: object) -> str:
    out = io.StringIO()
    Console(file=out, width=80, color_system=None).print(table)
    return out.getvalue()


def test_a_sweep_with_long_latencies_fits_eighty_columns() -> None:
    text = text_of(sweep_table([level(1, 0.5), level(64, 1.23456), level(256, 98.7, "overloaded")]))
    assert "500/500/500" in text
    assert "1235/1235/1235" in text
    assert "99s/99s/99s" in text
    assert "…" not in text
    assert "c 256" in text


def test_a_level_shows_every_latency() -> None:
    text = text_of(detail_table(level(3, 0.5)))
    for name in ("TTFT", "TPOT", "ITL", "E2E"):
        assert name in text
    assert "concurrency 3: 2 requests in 0.8 s" in text
    assert "8 of them cached" in text


def test_the_document_is_the_level_with_units_in_its_names() -> None:
    document = as_document(level(3, 0.5, "overloaded"))
    assert document["ttft_ms"]["p50"] == 500.0
    assert document["e2e_ms"]["p50"] == 750.0
    assert document["errors"] == {"overloaded": 1}
    assert document["output_tokens_per_second"] == 2.0
    assert not {"ttft", "cold_ttft"} & set(document)


def test_errors_are_listed_by_level_and_code() -> None:
    assert error_lines([level(1, 0.5), level(2, 0.5, "overloaded")]) == [
        "concurrency 2: 1 x overloaded"
    ]


def test_a_plot_names_its_levels_and_leaves_out_those_without_success() -> None:
    failed = summarize("concurrency", 512, [RequestRecord(0.0, 0.0, [], 1.0, error="overloaded")])
    plot = draw([level(1, 0.5), level(64, 0.9), failed], 80, colorless=True)
    assert draw([level(1, 0.5), level(64, 0.9)], 80, colorless=True) == plot
    assert "64" in plot
    assert "512" not in plot
    assert "900" in plot  # the largest TTFT is the right axis' end
    assert max(len(line) for line in plot.splitlines()) <= 80
