"""The end of a run: steps, figures and tests in one text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.gpu.kit.steps import Result

_TESTED = re.compile(r"^(FAILED|ERROR)|(passed|failed|skipped|error).* in [0-9.]+s")
_WARNED = re.compile(r"\bwarning\b|not captured|DOES NOT LOAD|CANNOT BE IMPORTED", re.IGNORECASE)
_MOST_LINES, _WIDTH = 40, 200


def summary(
    results: Sequence[Result],
    seconds: float,
    figures: Iterable[Path],
    tests: Iterable[Path],
    others: Iterable[Path] = (),
) -> str:
    """What a run gave.

    Args:
        results: of its steps.
        seconds: that it took.
        figures: documents of ``gatewayd bench``; those that are missing are left out.
        tests: logs of tests.
        others: logs of which only warnings are told, such as that a step was not captured.
    """
    lines = [f"=== steps ({seconds:.0f} s)"]
    lines += [line for result in results for line in result.lines()]
    lines += ["=== figures", *(line for file in figures for line in figure_lines(file))]
    lines += ["=== warnings", *(line for file in others for line in told(file, _WARNED))]
    lines += ["=== tests", *(line for file in tests for line in told(file, _TESTED))]
    return "\n".join(lines) + "\n"


def figure_lines(file: Path) -> list[str]:
    """The comparisons of one document, and the steps of its workloads."""
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return []
    where = found["machine"]["gpu"] or found["machine"]["cpu"]
    lines = [f"{where} {found['model']} {found['dtype']} {'; '.join(found['differences'])}"]
    lines += [_comparison(one) for one in found["comparisons"]]
    return lines + [_steps(one) for one in found["workloads"] if "step_ms" in one]


def _comparison(one: dict[str, Any]) -> str:
    def said(key: str, form: str) -> str:
        value = one.get(key)
        return "-" if value is None else format(value, form)

    return (
        f"{one['workload']:36} {one['figure']:26} {said('measured', ',.1f'):>10}"
        f"  vLLM {said('reference', ',.1f'):>9}  x{said('times_reference', '.2f')}"
        f"  goal {said('goal', ',.1f'):>9}  limit {said('limit', ',.1f'):>9}"
        f"  share {said('share_of_limit', '.0%'):>4}"
    )


def _steps(one: dict[str, Any]) -> str:
    return (
        f"{one['workload']:36} {one['steps']:5} steps of {one['step_ms']:7.2f} ms,"
        f" {one['step_tokens']:7.1f} tokens, batch {one['step_sequences']:6.1f},"
        f" CPU {one['cpu_us'] or 0:7.1f} us"
    )


def told(file: Path, what: re.Pattern[str]) -> list[str]:
    """Lines of a log that match, each once, without the heads of steps."""
    if not file.is_file():
        return []
    lines = file.read_text("utf-8", errors="replace").splitlines()
    found = [line[:_WIDTH] for line in lines if what.search(line) and line[:5] != "#####"]
    return list(dict.fromkeys(found))[:_MOST_LINES]
