"""Histograms with batched observation, and the bucket bounds used on ``/metrics``."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import repeat

from prometheus_client.core import HistogramMetricFamily

# The bounds are those of vLLM's histograms, so that quantiles of both can be compared.
LATENCY = (.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)  # fmt: skip # noqa: E501
FIRST_TOKEN = (.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)  # fmt: skip # noqa: E501
NEXT_TOKEN = (.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)  # fmt: skip # noqa: E501
NUM_CHOICES = (1, 2, 5, 10, 20)
NUM_PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)


def token_bounds(max_model_len: int) -> list[int]:
    """Return the bucket bounds 1, 2, 5, 10, 20, 50 ... up to ``max_model_len``."""
    bounds: list[int] = []
    scale = 1
    while True:
        for step in (1, 2, 5):
            if step * scale > max_model_len:
                return bounds
            bounds.append(step * scale)
        scale *= 10


class Histogram:
    """Histogram that observes values one by one or many at once."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = list(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Observe one value."""
        # To the left: a value equal to a bound belongs to its bucket, as Prometheus's ``le`` says.
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def observe_all(self, values: Sequence[float]) -> None:
        """Observe many values, at a tenth of the cost per value."""
        # One bisection per value without a loop in Python, then one addition per bucket.
        for at, count in Counter(map(bisect_left, repeat(self._bounds), values)).items():
            self._counts[at] += count
        self._sum += sum(values)

    def show(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        """Add the histogram to a metric family."""
        add_histogram(family, labels, self._bounds, self._counts, self._sum)


def add_histogram(
    family: HistogramMetricFamily,
    labels: Sequence[str],
    bounds: Sequence[float],
    counts: Sequence[int],
    total: float,
) -> None:
    """Add a histogram to a metric family, with cumulative buckets as Prometheus requires.

    Args:
        family: metric family to add to.
        labels: values of its labels.
        bounds: upper bounds of the buckets.
        counts: values in each bucket, and above the last bound.
        total: sum of all values.
    """
    below, buckets = 0, []
    for bound, count in zip([*map(float, bounds), None], counts, strict=True):
        below += count
        buckets.append(("+Inf" if bound is None else repr(bound), float(below)))
    family.add_metric(labels, buckets, total)
