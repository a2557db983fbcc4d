"""Results of ``gatewayd quality`` as a terminal table, Markdown or JSON values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from rich.table import Table

from gatewayd_engine.offline.quality.job import QualityFigures, SchemeMeasured, SchemeUnusable

_MIB = 1 << 20
_READ = "KV read"
"""Column that is only shown if a KV compression was measured."""
_COLUMNS = (
    ("scheme", False),
    ("weights MiB", True),
    ("KV B/token", True),
    (_READ, True),
    ("decode tok/s", True),
    ("texts", False),
    ("tokens", True),
    ("perplexity", True),
    ("change", True),
    ("agreement", True),
    ("KL mean", True),
    ("KL p99", True),
)

Result = SchemeMeasured | SchemeUnusable
Named = Sequence[tuple[str, Result]]


def table(results: Named) -> Table:
    """Format results as a terminal table; for failed schemes see ``reasons``."""
    made = Table(box=None, pad_edge=False)
    columns = _columns(results)
    for header, is_number in columns:
        made.add_column(header, justify="right" if is_number else "left", no_wrap=True)
    for name, result in results:
        for row in _rows(name, result, columns):
            made.add_row(*row)
    return made


def reasons(results: Named) -> list[str]:
    """Return a line for each scheme that cannot be used, with the reason."""
    return [f"{name}: {one.reason}" for name, one in results if isinstance(one, SchemeUnusable)]


def notes(results: Named) -> list[str]:
    """Return a line for each scheme whose figures have a caveat."""
    return [
        f"{name}: {one.note}"
        for name, one in results
        if isinstance(one, SchemeMeasured) and one.note
    ]


def markdown(results: Named) -> str:
    """Format results as a Markdown table."""
    columns = _columns(results)
    lines = [
        _line([header for header, _ in columns]),
        _line(["---:" if is_number else "---" for _, is_number in columns]),
    ]
    for name, result in results:
        if isinstance(result, SchemeUnusable):
            sentence = result.reason.replace("|", "\\|")
            lines.append(_line([name, f"cannot be used: {sentence}", *[""] * (len(columns) - 2)]))
        else:
            lines.extend(_line(row) for row in _rows(name, result, columns))
    return "\n".join(lines)


def values(results: Named) -> list[dict[str, Any]]:
    """Convert results to JSON values, with ``error`` for schemes that cannot be used."""
    found = []
    for name, result in results:
        if isinstance(result, SchemeUnusable):
            found.append({"scheme": name, "error": result.reason})
            continue
        rest = msgspec.to_builtins(result)
        found.append({**rest, "scheme": name})
        # The tag by which msgspec distinguishes the results.
        del found[-1]["type"]
    return found


def most_kl(results: Named) -> float:
    """Return the largest mean divergence over all kinds of texts; 0 without a reference."""
    return max(
        (
            figures.kl_mean or 0.0
            for _, one in results
            if isinstance(one, SchemeMeasured)
            for figures in one.kinds.values()
        ),
        default=0.0,
    )


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _columns(results: Named) -> list[tuple[str, bool]]:
    """Return the header of each column, and whether it is numeric."""
    is_compressed = any(
        isinstance(one, SchemeMeasured) and one.kv_read is not None for _, one in results
    )
    return [column for column in _COLUMNS if is_compressed or column[0] != _READ]


def _rows(name: str, result: Result, columns: Sequence[tuple[str, bool]]) -> Iterator[list[str]]:
    if isinstance(result, SchemeUnusable):
        yield [name, "cannot be used", *[""] * (len(columns) - 2)]
        return
    cells = [name, f"{result.weight_bytes / _MIB:,.1f}", f"{result.kv_bytes_per_token:,.0f}"]
    if (_READ, True) in columns:
        cells.append(f"{1 if result.kv_read is None else result.kv_read:.1%}")
    cells.append(f"{result.decode_tokens_per_second:,.0f}")
    for kind, figures in result.kinds.items():
        yield [*cells, kind, *_figures(figures)]
        # Figures of the scheme itself are in its first row only.
        cells = [""] * len(cells)


def _figures(figures: QualityFigures) -> list[str]:
    known = [f"{figures.tokens:,}", f"{figures.perplexity:,.4f}"]
    before = figures.reference_perplexity
    if before is None or figures.agreement is None:
        return [*known, "", "", "", ""]
    return [
        *known,
        f"{figures.perplexity / before - 1:+.2%}",
        f"{figures.agreement:.2%}",
        f"{figures.kl_mean:.5f}",
        f"{figures.kl_p99:.5f}",
    ]
