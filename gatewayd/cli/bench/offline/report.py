"""Output of ``bench offline``."""

from __future__ import annotations

from collections.abc import Sequence

from gatewayd.cli.bench.h200 import Comparison, compare, reference
from gatewayd.cli.bench.offline.measure import OfflineOutcome
from gatewayd.cli.bench.tables import TableRows, number


def comparisons(outcome: OfflineOutcome) -> list[Comparison]:
    """Compare a workload's figures that have a goal."""
    known = reference().offline[outcome.workload]
    return compare(outcome.workload, known, outcome.figures())


def engine_rows(outcomes: Sequence[OfflineOutcome]) -> TableRows:
    """Format engine statistics of each workload as rows."""
    header = ["workload", "requests", "tokens in", "cached", "out", "s", "output tok/s"]
    header += ["input tok/s", "requests/s", "steps", "ms/step", "tokens/step", "batch"]
    header += ["preempted", "CPU us"]
    rows = []
    for one in outcomes:
        figures = one.figures()
        rows.append(
            [
                one.workload,
                f"{one.requests:,}",
                f"{one.input_tokens:,}",
                f"{one.cached_tokens:,}",
                f"{one.output_tokens:,}",
                number(one.seconds),
                number(figures["output_tokens_per_second"]),
                number(figures["input_tokens_per_second"]),
                number(figures["requests_per_second"]),
                f"{one.steps:,}",
                number(one.step_ms),
                number(one.step_tokens),
                number(one.step_sequences),
                f"{one.preemptions:,}",
                "-" if one.cpu_us is None else number(one.cpu_us),
            ]
        )
    return TableRows(header, rows)
