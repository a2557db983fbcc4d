"""Shares of a timeline by hand; needs no GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.gpu import figures


def test_gaps_between_kernels_are_idle() -> None:
    found = figures.timeline([(100, 40), (142, 38), (200, 100)])
    assert found["seconds"] == pytest.approx(200e-6)
    assert found["idle"] == pytest.approx(22 / 200)
    assert found["idle_in_long_gaps"] == pytest.approx(20 / 200)


def test_gaps_between_a_graphs_launches_are_reported_but_the_host_is_blamed_for_long_ones() -> None:
    # 331 kernels with a microsecond between them: a step of 6 ms.
    step = [(index * 18.0, 17.0) for index in range(331)]
    quick = figures.timeline(step + [(start + 331 * 18, took) for start, took in step])
    assert quick["idle"] > 0.05
    assert figures.keeps_busy(quick)
    late = figures.timeline(step + [(start + 332 * 18 + 400, took) for start, took in step])
    assert not figures.keeps_busy(late)


def test_kernels_of_two_streams_overlap() -> None:
    # One that ends early within another, and one that begins before that other has ended.
    found = figures.timeline([(0, 100), (10, 20), (90, 30), (130, 70)])
    assert found["idle"] == pytest.approx(10 / 200)


def test_a_timeline_without_kernels_is_refused() -> None:
    with pytest.raises(ValueError, match="no kernels"):
        figures.timeline([])


def test_copies_are_no_kernels(tmp_path: Path) -> None:
    events = [
        {"cat": "kernel", "ts": 5, "dur": 2.5},
        {"cat": "gpu_memcpy", "ts": 8, "dur": 9},
        {"name": "process_name"},
    ]
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"traceEvents": events}))
    assert figures.kernels_of(file) == [(5.0, 2.5)]


def test_figures_are_collected_in_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    figures.write("a", {"x": 1})
    figures.write("b", {"y": 2.5})
    figures.write("a", {"x": 3})
    assert json.loads((tmp_path / "out" / "timeline.json").read_text()) == {
        "a": {"x": 3},
        "b": {"y": 2.5},
    }
    monkeypatch.delenv("OUT")
    figures.write("c", {})
