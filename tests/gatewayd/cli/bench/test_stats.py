"""Benchmark statistics: percentiles and totals equal hand-worked values and numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewayd.cli.bench.record import RequestRecord
from gatewayd.cli.bench.stats import latency_distribution, percentile, summarize


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=200),
    st.sampled_from([0, 1, 50, 90, 99, 99.9, 100]),
)
def test_a_percentile_is_the_one_numpy_computes(values: list[float], percent: float) -> None:
    expected = float(np.percentile(values, percent))
    assert percentile(sorted(values), percent) == pytest.approx(expected, rel=1e-12, abs=1e-9)


def test_a_percentile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        percentile([], 50)


def test_a_spread_is_in_milliseconds_and_keeps_the_tail() -> None:
    spread = latency_distribution([0.001] * 99 + [1.0])
    assert spread is not None
    assert spread.p50 == pytest.approx(1.0)
    assert spread.p90 == pytest.approx(1.0)
    assert spread.p99 == pytest.approx(1.0 + 0.01 * 999)
    assert spread.max == pytest.approx(1000.0)
    assert spread.mean == pytest.approx((99 + 1000) / 100)
    assert latency_distribution([]) is None


def record(intended: float, arrivals: list[float], tokens: int, **other: object) -> RequestRecord:
    values = {"ended": arrivals[-1] if arrivals else intended, **other}
    return RequestRecord(intended, intended + 0.125, arrivals, output_tokens=tokens, **values)  # type: ignore[arg-type]


def test_latencies_of_a_request_add_up_exactly() -> None:
    one = record(10.0, [10.25, 10.5, 11.0, 11.25], 4)
    assert one.ttft == 0.25
    assert one.itl == [0.25, 0.5, 0.25]
    assert one.e2e == one.ttft + math.fsum(one.itl) == 1.25
    assert one.tpot == 1.0 / 3


def test_tokens_that_came_together_share_an_arrival_but_not_their_time_per_token() -> None:
    one = record(0.0, [1.0, 2.0], 5)
    assert one.itl == [1.0]
    assert one.tpot == 0.25


def test_a_request_of_one_token_has_no_time_per_token() -> None:
    assert record(0.0, [1.0], 1).tpot is None


def test_a_request_without_visible_output_is_timed_by_its_end() -> None:
    one = record(1.0, [], 3, ended=4.0)
    assert (one.ttft, one.e2e, one.itl) == (3.0, 3.0, [])


def test_failed_requests_count_as_errors_and_nothing_else() -> None:
    level = summarize(
        "concurrency",
        2,
        [
            record(0.0, [1.0, 2.0], 2, prompt_tokens=5, cached_tokens=1),
            record(0.0, [1.5, 4.0], 2, prompt_tokens=5),
            record(1.0, [9.0], 1, error="overloaded"),
            record(1.0, [], 0, error="overloaded"),
        ],
    )
    assert level.seconds == 9.0
    assert level.succeeded == 2
    assert level.errors == {"overloaded": 2}
    assert (level.prompt_tokens, level.cached_tokens, level.output_tokens) == (10, 1, 4)
    assert level.requests_per_second == pytest.approx(2 / 9)
    assert level.output_tokens_per_second == pytest.approx(4 / 9)
    assert level.e2e is not None
    assert level.e2e.p50 == pytest.approx(3000.0)


def test_a_level_without_any_request_has_no_rates() -> None:
    level = summarize("rate", 1.0, [])
    assert (level.requests_per_second, level.output_tokens_per_second, level.ttft) == (0, 0, None)
