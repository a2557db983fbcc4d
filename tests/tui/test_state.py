"""Console state: what is remembered, and number formats."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gatewayd.wire.snapshot import Snapshot
from gatewayd_tui.figures import bar, count, duration, millis, percent, size, sparkline
from gatewayd_tui.state import (
    MOST_LOGS,
    MOST_POINTS,
    ConsoleState,
    advance,
    mark_lost,
    rate,
    rates,
    share,
)
from gatewayd_tui.waterfall import markdown, relative_to_median, render_breakdown
from tests.tui.samples import BEGAN, explanation, log, snapshot


def after(*snapshots: Snapshot) -> ConsoleState:
    state = ConsoleState()
    for each in snapshots:
        state = advance(state, each)
    return state


def test_rates_are_growth_over_time() -> None:
    state = after(*(snapshot(n) for n in range(30)))  # 1 request and 30 tokens each 0.5 s
    assert rate(state.history, lambda p: p.requests) == pytest.approx(2.0)
    assert rate(state.history, lambda p: p.generated_tokens) == pytest.approx(60.0)
    assert rates(state.history, lambda p: p.prompt_tokens) == pytest.approx([180.0] * 29)
    assert share(state.history) == pytest.approx(0.5)


def test_a_rate_forgets_what_was_long_ago() -> None:
    numbers = [0, *range(100, 120)]  # nothing for 50 s, then as before
    state = after(*(snapshot(n) for n in numbers))
    assert rate(state.history, lambda p: p.requests) == pytest.approx(2.0)
    late = after(snapshot(0), snapshot(100))  # only one within the time: against the one before
    assert rate(late.history, lambda p: p.requests) == pytest.approx(2.0)


def test_rates_are_over_the_time_between_two_collections() -> None:
    numbers = [0, 0, 2, 2, 2, 4, 7]  # requests when it was collected last, two of them a second
    state = after(
        *(
            snapshot(place + 1, samples=snapshot(n).samples, samples_unix=snapshot(n).unix)
            for place, n in enumerate(numbers)
        )
    )
    assert [p.requests - state.history[0].requests for p in state.history] == numbers
    assert rate(state.history, lambda p: p.requests) == pytest.approx(2.0)
    assert rates(state.history, lambda p: p.requests) == pytest.approx([0.0] + [2.0] * 5)
    # Nothing new within the time: against the collection before.
    late = after(snapshot(0), *(snapshot(n, samples_unix=BEGAN + 50) for n in (100, 101, 102)))
    assert rate(late.history, lambda p: p.requests) == pytest.approx(102 / 50)


def test_nothing_is_divided_by_no_time() -> None:
    assert rate((), lambda p: p.requests) == 0
    assert share(after(snapshot()).history) is None
    state = after(snapshot(3), snapshot(3))
    assert rate(state.history, lambda p: p.requests) == 0
    assert share(state.history) is None


def test_totals_add_up_over_labels_and_only_of_their_metric() -> None:
    samples = {
        'gatewayd_http_requests_total{endpoint="a",status="200"}': 7.0,
        'gatewayd_http_requests_total{endpoint="a",status="500"}': 2.0,
        'gatewayd_http_requests_total{endpoint="b",status="503"}': 3.0,
        'vllm:request_success_total{finished_reason="stop"}': 5.0,
        'vllm:request_success_total{finished_reason="abort"}': 1.0,
        "vllm:request_success_totals": 100.0,
    }
    (point,) = after(snapshot(samples=samples)).history
    assert (point.errors, point.requests) == (5.0, 6.0)


def test_the_history_is_short_and_of_one_daemon() -> None:
    state = after(*(snapshot(n) for n in range(MOST_POINTS + 7)))
    assert len(state.history) == MOST_POINTS
    other = msgspec.structs.replace(snapshot(1).daemon, pid=4001)
    state = advance(state, snapshot(1, daemon=other))
    assert len(state.history) == 1
    assert [each.number for each in state.logs] == [4, 5, 6, 7]


@pytest.mark.parametrize(("unix", "uptime"), [(90.0, 0.5), (5000.0, 4000.0)])
def test_a_daemon_that_was_started_again_is_another_one_also_with_the_same_pid(
    unix: float, uptime: float
) -> None:
    before = after(*(snapshot(n) for n in range(40)))
    fresh = msgspec.structs.replace(before.snapshot.daemon, uptime_seconds=uptime)  # type: ignore[union-attr]
    logs = [log(0), log(1)]
    for number in (1, 50):
        again = snapshot(number, unix=BEGAN + unix, daemon=fresh, logs=logs)
        state = advance(before, again)
        assert len(state.history) == 1
        assert [each.number for each in state.logs] == [0, 1]


def test_a_clock_that_is_set_a_little_keeps_the_history() -> None:
    before = after(snapshot(0))
    assert len(advance(before, snapshot(1, unix=BEGAN + 3)).history) == 2


def test_log_lines_come_once_and_the_oldest_go() -> None:
    state = after(snapshot(logs=[log(1), log(2)]), snapshot(logs=[log(2), log(3)]))
    assert [each.number for each in state.logs] == [1, 2, 3]
    state = advance(state, snapshot(logs=[log(n) for n in range(4, MOST_LOGS + 10)]))
    assert len(state.logs) == MOST_LOGS
    assert state.logs[-1].number == MOST_LOGS + 9


def test_a_loss_keeps_the_last_state_and_news_ends_it() -> None:
    state = mark_lost(after(snapshot(1)), "gone")
    assert state.lost == "gone"
    assert state.snapshot == snapshot(1)
    assert advance(state, snapshot(2)).lost is None


@pytest.mark.parametrize(
    ("written", "value"),
    [
        (count, [(None, "-"), (0, "0"), (0.25, "0.2"), (987, "987"), (9500, "9500")]),
        (count, [(41_000, "41k"), (12_345, "12.3k"), (4_560_000, "4.56M"), (2e9, "2G")]),
        (count, [(999_600, "1M"), (-41_000, "-41k")]),
        (millis, [(None, "-"), (0.04, "0.0ms"), (3.21, "3.2ms"), (9.96, "10ms"), (870, "870ms")]),
        (millis, [(999.6, "1.0s"), (12_500, "12.5s"), (59_960, "1m00s"), (-1500, "-1.5s")]),
        (duration, [(45, "45s"), (250, "4m10s"), (7500, "2h05m"), (273_600, "3d04h")]),
        (percent, [(None, "-"), (0, "0%"), (0.004, "0.4%"), (0.37, "37%"), (1, "100%")]),
        (size, [(512, "512 B"), (1.5 * 2**30, "1.5 GiB"), (3 * 2**40, "3.0 TiB")]),
    ],
)
def test_numbers_are_short(written: Any, value: list[tuple[float | None, str]]) -> None:
    assert [written(number) for number, _ in value] == [text for _, text in value]


def test_bars_and_lines_have_their_width() -> None:
    assert bar(0.5, 4) == "██░░"
    assert bar(7.0, 4) == "████"
    assert sparkline([0, 1, 2, 8], 6) == "  ▁▁▂█"
    assert sparkline([5, 5], 4, 10) == "  ▄▄"
    assert sparkline([1] * 9, 3) == "███"
    assert sparkline([0, 0], 3) == " ▁▁"


def test_the_parts_of_a_waterfall_are_where_they_were() -> None:
    lines = render_breakdown(explanation("r-1"), 19 + 22 + 50).plain.splitlines()
    bars = {row[:19].strip(): row.split("|")[1] for row in lines if "|" in row}
    assert (
        bars["running batch full"] == " " + "█" * 35 + " " * 14
    )  # from 12 ms for 700 of 1000, in 50 cells
    assert bars["decode"] == " " * 40 + "█" * 9 + " "
    assert bars["shared step"] == "·" + " " * 49
    assert explanation("r-1").verdict in lines


def test_markdown_has_a_row_for_each_part() -> None:
    text = markdown(explanation("r-1"))
    assert "| running batch full | 12.0 ms | 700.0 ms |" in text
    assert "| shared step |  | 20.0 ms |" in text
    assert "| total | | 1000.0 ms |" in text


def test_a_class_is_known_by_three_requests() -> None:
    assert relative_to_median(2000.0, [1000.0, 1000.0]) == ""
    assert (
        relative_to_median(2000.0, [500.0, 1000.0, 9000.0])
        .strip()
        .startswith("2.0x the median of its class, 1.0s")
    )
