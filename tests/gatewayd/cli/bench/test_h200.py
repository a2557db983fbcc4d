"""H200 figures: stored values fit the workloads; comparisons judge better and significant."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from gatewayd.cli.bench.h200 import (
    FIGURES,
    Comparison,
    KnownFigure,
    compare,
    differences,
    reference,
)
from gatewayd.cli.bench.offline.workloads import KEYS
from gatewayd.cli.bench.offline.workloads import WORKLOADS as OFFLINE
from gatewayd.cli.bench.served.workloads import WORKLOADS as SERVED
from gatewayd.cli.bench.tables import comparison_rows

OTHER_FIGURES = tomllib.loads(Path(__file__).with_name("vllm_h200.toml").read_text("utf-8"))
"""Figures of the other engine that have no goal, by kind and name of the workload."""


def test_stored_offline_figures_are_of_these_workloads() -> None:
    known = reference().offline
    made = {workload.name: workload for workload in (make(0) for make in OFFLINE.values())}
    assert known.keys() == made.keys()
    assert list(KEYS.items()) == list(zip(made, OFFLINE, strict=True))
    for name, workload in made.items():
        if not known[name].rival:
            assert name == "even_512x1000_out1000", "nobody has measured just this"
            continue
        rival = known[name].rival | OTHER_FIGURES["offline"][name]
        seconds = rival["seconds"]
        assert rival["requests_per_second"] * seconds == pytest.approx(len(workload.own))
        assert rival["input_tokens_per_second"] * seconds == pytest.approx(
            sum(map(len, workload.prompts))
        )
        assert rival["output_tokens_per_second"] * seconds == pytest.approx(
            sum(workload.output_lens)
        )


def test_stored_served_figures_are_of_these_workloads() -> None:
    known = reference().served
    assert known.keys() == SERVED.keys()
    for name, served in SERVED.items():
        rival = known[name].rival | OTHER_FIGURES["served"][name]
        tokens = served.requests * served.output_tokens
        assert rival["output_tokens_per_second"] * rival["seconds"] == pytest.approx(
            tokens, rel=1e-3
        )
        assert rival["requests_per_second"] * rival["seconds"] == pytest.approx(
            served.requests, rel=5e-3
        )


def test_every_goal_is_beyond_what_the_other_engine_does_and_within_the_limit() -> None:
    known = reference()
    for name, one in {**known.offline, **known.served}.items():
        assert one.goals, name
        if not one.rival:
            assert name == "even_512x1000_out1000", "nobody has measured just this"
            continue
        assert one.goals.keys() == one.rival.keys() <= FIGURES.keys()
        assert one.limits.keys() <= one.goals.keys() & one.rival.keys()
        for figure, goal in one.goals.items():
            at_goal = Comparison(
                name, figure, goal, one.rival[figure], goal, one.limits.get(figure)
            )
            assert (at_goal.ratio_to_rival or 0) > 1
            assert at_goal.meets_goal
            assert (at_goal.share_of_limit or 0) <= 1


KNOWN = KnownFigure(
    rival={"output_tokens_per_second": 200.0, "ttft_p50_ms": 20.0},
    goals={"output_tokens_per_second": 240.0, "ttft_p50_ms": 15.0},
    limits={"output_tokens_per_second": 300.0},
)


def test_more_tokens_and_less_time_are_better() -> None:
    speed, wait = compare("w", KNOWN, {"output_tokens_per_second": 250.0, "ttft_p50_ms": 16.0})
    assert (speed.ratio_to_rival, speed.meets_goal) == (1.25, True)
    assert speed.share_of_limit == pytest.approx(250 / 300)
    assert (wait.ratio_to_rival, wait.meets_goal, wait.share_of_limit) == (1.25, False, None)
    assert replace(wait, limit=12.0).share_of_limit == pytest.approx(12 / 16)
    slow, quick = compare("w", KNOWN, {"output_tokens_per_second": 239.0, "ttft_p50_ms": 15.0})
    assert (slow.meets_goal, quick.meets_goal) == (False, True)


def test_a_start_is_judged_without_another_engines() -> None:
    known = reference().start
    assert known.goals == {"warm_start_seconds": 30}
    quick, slow = (compare("start", known, {"warm_start_seconds": s})[0] for s in (30.0, 31.0))
    assert (quick.meets_goal, slow.meets_goal) == (True, False)
    (row,) = comparison_rows([quick], is_verdict=True).rows
    assert row == ["start", "warm start, s", "30", "", "", "≤ 30", "", "", "kept"]


def test_what_was_not_measured_is_not_compared() -> None:
    assert [one.figure for one in compare("w", KNOWN, {"ttft_p50_ms": 1.0})] == ["ttft_p50_ms"]


def test_only_the_whole_workloads_on_such_a_machine_are_a_verdict() -> None:
    right = ("NVIDIA H200", "llama-8b", "bfloat16", 1.0)
    assert differences(*right) == []
    for place, other, words in (
        (0, "", "without a GPU"),
        (0, "NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB"),
        (0, "NVIDIA A100-SXM4-80GB, NVIDIA H200", "A100"),
        (1, "nano", "nano"),
        (2, "float32", "float32"),
        (3, 0.5, "0.5"),
    ):
        run = [*right]
        run[place] = other
        (said,) = differences(*run)  # type: ignore[arg-type]
        assert words in said


def test_rows_say_of_which_machine_the_figures_are_and_judge_only_there() -> None:
    made = compare("w", KNOWN, {"output_tokens_per_second": 250.0, "ttft_p50_ms": 16.0})
    judged = comparison_rows(made, is_verdict=True)
    assert [row[-1] for row in judged.rows] == ["kept", "missed"]
    assert judged.rows[0][2:-1] == ["250", "200", "1.25", "≥ 240", "300", "83%"]
    assert judged.rows[1][2:-1] == ["16", "20", "1.25", "≤ 15", "", ""]
    elsewhere = comparison_rows(made, is_verdict=False)
    assert [row[-1] for row in elsewhere.rows] == ["-", "-"]
    assert [word for word in elsewhere.header if "H200" in word] == [
        "vLLM 0.25.1, H200",
        "goal, H200",
        "limit, H200",
    ]
    on_another = comparison_rows(made, is_verdict=False, chip="NVIDIA H100 PCIe")
    assert [word for word in on_another.header if "H" in word][-2:] == [
        "goal, H200",
        "limit, H100 PCIe",
    ]
    lines = judged.as_markdown().splitlines()
    assert lines[0].startswith("| workload | figure | ours | vLLM 0.25.1, H200 |")
    assert lines[2] == "| w | output tok/s | 250 | 200 | 1.25 | ≥ 240 | 300 | 83% | kept |"


def test_the_table_of_the_documents_has_these_figures_and_a_cell_for_each_of_ours() -> None:
    known = reference()
    made = [
        comparison
        for name, one in (
            *known.offline.items(),
            ("start", known.start),
            *known.served.items(),
        )
        for comparison in compare(name, one, dict.fromkeys(one.goals, 1.0))
    ]
    wanted = comparison_rows(made, is_verdict=True)
    text = (Path(__file__).parents[4] / "docs/benchmarks.md").read_text("utf-8")
    section = text.partition("### One H200\n")[2].partition("\n### ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert cells[0] == wanted.header
    # All but what is ours, and what follows from it.
    stored = (0, 1, 3, 5, 6)
    assert [[row[i] for i in stored] for row in cells[2:]] == [
        [row[i] for i in stored] for row in wanted.rows
    ]
    assert all(row[i] for row in cells[2:] for i in (2, 8))
    # A ratio where there is something to compare with.
    assert all(bool(row[4]) is bool(row[3]) for row in cells[2:])
