"""Results of ``gatewayd bench`` as terminal tables and JSON documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.table import Table

from gatewayd.cli.bench.stats import LatencyDistribution, Level

LATENCIES = ("ttft", "tpot", "itl", "e2e")


def as_document(level: Level) -> dict[str, Any]:
    """Convert a level to JSON values, with latencies in milliseconds under ``*_ms``."""
    document = asdict(level)
    document["requests_per_second"] = level.requests_per_second
    document["output_tokens_per_second"] = level.output_tokens_per_second
    for name in ("cold_ttft", *LATENCIES):
        document[f"{name}_ms"] = document.pop(name)
    return document


def detail_table(level: Level) -> Table:
    """Format all percentiles of one level."""
    table = Table(title=headline(level), title_justify="left")
    table.add_column("milliseconds")
    for column in ("mean", "p50", "p90", "p99", "max"):
        table.add_column(column, justify="right")
    for name in LATENCIES:
        spread: LatencyDistribution | None = getattr(level, name)
        cells = [_ms(v) for v in asdict(spread).values()] if spread else ["-"] * 5
        table.add_row(name.upper(), *cells)
    return table


def sweep_table(levels: Sequence[Level]) -> Table:
    """Format one row per level, with latencies as p50/p90/p99."""
    caption = "latencies: p50/p90/p99, milliseconds"
    # Three latencies with three figures each must fit a terminal of 80 columns.
    table = Table(caption=caption, caption_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("load", "req/s", "tok/s", "TTFT", "TPOT", "E2E", "err"):
        table.add_column(column, justify="left" if column == "load" else "right", no_wrap=True)
    for level in levels:
        name = "c" if level.load == "concurrency" else "rate"
        table.add_row(
            f"{name} {level.value:g}",
            f"{level.requests_per_second:.2f}",
            f"{level.output_tokens_per_second:,.0f}",
            *(_triple(spread) for spread in (level.ttft, level.tpot, level.e2e)),
            str(sum(level.errors.values()) or "-"),
        )
    return table


def headline(level: Level) -> str:
    """Format the totals of a level as a line."""
    cached = f", {level.cached_tokens:,} of them cached" if level.cached_tokens else ""
    cold = f"; cold TTFT {_ms(level.cold_ttft)} ms" if level.cold_ttft is not None else ""
    return (
        f"{level.load} {level.value:g}: {level.succeeded} requests in {level.seconds:.1f} s, "
        f"{level.requests_per_second:.2f} req/s, "
        f"{level.output_tokens_per_second:,.0f} output tokens/s "
        f"({level.prompt_tokens:,} in{cached}, {level.output_tokens:,} out{cold})"
    )


def error_lines(levels: Sequence[Level]) -> list[str]:
    """Return a line for each error code at each level."""
    return [
        f"{level.load} {level.value:g}: {count} x {code}"
        for level in levels
        for code, count in sorted(level.errors.items())
    ]


def _ms(value: float) -> str:
    """Format milliseconds in at most four characters: ``2.07``, ``14.9``, ``102``, ``1234``.

    From 10,000 on in seconds: ``12s`` for 12,345.
    """
    if value >= 10_000:
        return f"{value / 1000:.0f}s"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _triple(spread: LatencyDistribution | None) -> str:
    if spread is None:
        return "-"
    return "/".join(_ms(value) for value in (spread.p50, spread.p90, spread.p99))
