"""Allocates drafts by expected acceptance, as long as that increases goodput.

The goodput of a step is the expected number of accepted tokens per second: each further draft of a
sequence is accepted only if all before it are, so it contributes ``acceptance ** depth``, and it
costs the difference of a step with one more token. Drafts are allocated in order of their
contribution while the rate rises (goodput: Liu et al. 2024, arXiv 2406.14066). Both sides are
measured continuously: so a full batch, where every token costs, ends speculation by itself.

Expectations can be wrong, and measuring costs time too. So there is a budget of time that drafts
may lose: a small fraction of all time is added to it, the loss of a step with drafts is subtracted,
a gain is added, and there are no drafts while it is overdrawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gatewayd_hooks.helpers.handover import HandoverState
from gatewayd_spec_adaptive.cost import StepCost

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gatewayd_hooks.resources import EngineResources
    from gatewayd_hooks.speculation import SpecReport, SpecView
    from gatewayd_spec_adaptive.config import AdaptiveConfig

_DECAY = 0.95
"""Decay of a sequence's statistics at each verified draft."""
_PRIOR = 2.0
"""Weight, in drafts, of the global acceptance rate for a new sequence."""
_PROBED_ROWS, _PROBED_DRAFTS = 8, 8
"""Sequences of a probe, round-robin; and drafts in total, if that is two to four for each."""
_PROBE_EVERY = 8
"""Minimum number of steps without drafts before a probe."""
_FRESH = 32
"""Number of steps with drafts before one without, to measure its duration."""
_INCOME = 0.005
"""Fraction of time that drafts may lose."""
_MOST_SAVED = 4.0
_MOST_LOST = 3.0
"""Limits of the budget and of a single loss, in steps: more is a hiccup."""
_FORM = "adaptive/2"


class Adaptive:
    """Acceptance rate by row, cost by step size, and the best trade-off of the two."""

    def __init__(self, config: AdaptiveConfig) -> None:
        self._config = config
        self._depths = np.arange(1, config.max_drafts + 1)

    def open(self, resources: EngineResources) -> None:
        """Allocate the state of each row."""
        rows = resources.max_running
        self._tried = np.zeros(rows)
        self._kept = np.zeros(rows)
        # Optimistic at first, so that drafts are tried and measured.
        self._all_tried, self._all_kept = 4.0, 3.0
        # Fraction of requested drafts that the drafter delivered, by depth.
        self._came = np.ones(len(self._depths))
        self._step_cost, self._draft_cost = StepCost(), StepCost()
        self._time_budget = 0.0
        self._is_warm = False
        self._idle = self._busy = self._turn = 0
        self._settled: int | None = None

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def export_state(self) -> HandoverState:
        """Return the global statistics and costs; rows are admitted again."""
        acceptance = (self._all_tried, self._all_kept, self._came)
        costs = (self._time_budget, self._is_warm, self._step_cost, self._draft_cost)
        return HandoverState(_FORM, (acceptance, costs))

    def import_state(self, state: HandoverState) -> bool:
        """Take over the measurements of another."""
        if state.form != _FORM:
            return False
        acceptance, costs = state.content
        self._time_budget, self._is_warm, self._step_cost, self._draft_cost = costs
        self._all_tried, self._all_kept, came = acceptance
        common = min(len(came), len(self._came))
        self._came[:common] = came[:common]
        return True

    def admit(self, row: int) -> None:
        """Reset a row to the global statistics."""
        self._tried[row] = self._kept[row] = 0.0
        self._settled = None

    def decide(self, view: SpecView) -> NDArray[np.int64]:
        """Choose the drafts with the highest expected tokens per second."""
        self._idle += 1
        is_known = view.num_tokens == self._settled and self._idle < _PROBE_EVERY
        if self._time_budget < 0 or is_known or self._busy == _FRESH:
            # Nothing new is known before the next probe; deciding again would cost time.
            self._busy = 0
            return np.zeros(len(view.rows), np.int64)
        self._settled = None
        if not self._step_cost.knows(view.num_tokens):
            # First measure the step without drafts, as the baseline.
            return np.zeros(len(view.rows), np.int64)
        limits = np.minimum(view.limits, self._config.max_drafts)
        drafts = self._best(view, limits)
        if not drafts.any() and self._idle >= _PROBE_EVERY:
            drafts = self._probe(view, limits)
        if not drafts.any():
            self._settled, self._busy = view.num_tokens, 0
            return drafts
        self._idle = 0
        self._busy += 1
        return drafts

    def _best(self, view: SpecView, limits: NDArray[np.int64]) -> NDArray[np.int64]:
        n, most = len(view.rows), len(self._depths)
        share = self._all_kept / self._all_tried
        alpha = (self._kept[view.rows] + _PRIOR * share) / (self._tried[view.rows] + _PRIOR)
        # A draft is delivered only if all before it are.
        comes = np.minimum.accumulate(self._came)
        gains = alpha[:, None] ** self._depths * comes
        gains[self._depths > limits[:, None]] = 0.0
        flat = gains.ravel()
        # Gains of a row never increase with depth, and equal ones stay in order: the drafts before
        # any point of this order are the first ones of each row.
        order = np.argsort(-flat, kind="stable")[: max(view.budget, 0)]
        order = order[flat[order] > 0.0]
        if not len(order):
            return np.zeros(n, np.int64)
        depth = order % most
        # Entry i is for the first i drafts of the order; entry 0 is the step without drafts.
        kept = np.concatenate([[0.0], np.cumsum(flat[order])])
        came = np.concatenate([[0.0], np.cumsum(comes[depth])])
        seconds = self._step_cost.seconds(view.num_tokens + came)
        # The duration of drafting depends on the maximum depth.
        seconds[1:] += self._draft_cost.seconds(np.maximum.accumulate(depth) + 1.0)
        rate = (n + kept) / seconds
        best = int(rate.argmax())
        if rate[best] <= rate[0] * (1 + self._config.margin):
            return np.zeros(n, np.int64)
        return np.bincount(order[:best] // most, minlength=n).astype(np.int64)

    def _probe(self, view: SpecView, limits: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return some drafts for a few rows, to measure their acceptance and cost."""
        n = len(limits)
        # Round-robin over the rows, so that each is measured at times.
        few = (self._turn + np.arange(min(n, _PROBED_ROWS))) % max(n, 1)
        self._turn += len(few)
        wanted = np.zeros(n, np.int64)
        wanted[few] = np.minimum(limits[few], max(2, min(4, _PROBED_DRAFTS // max(n, 1))))
        before = np.cumsum(wanted) - wanted
        drafts: NDArray[np.int64] = np.minimum(wanted, np.maximum(view.budget - before, 0))
        return drafts

    def report(self, report: SpecReport) -> None:
        """Update acceptance and cost."""
        saved = self._time_budget + _INCOME * report.step_seconds
        self._time_budget = min(saved, _MOST_SAVED * report.step_seconds)
        most = int(report.asked.max(initial=0))
        if most and self._is_warm:
            self._time_budget -= self._lost(report, most)
            self._draft_cost.record(most, report.draft_seconds)
        if most:
            # The very first drafting has cold caches, and rows to prefill.
            self._is_warm = True
            self._learn(report, most)
        self._step_cost.record(report.num_tokens, report.step_seconds)

    def _lost(self, report: SpecReport, most: int) -> float:
        """Return the seconds that drafts have lost; negative if they have gained."""
        n, num_tokens = len(report.rows), max(report.num_tokens - int(report.drafted.sum()), 1)
        plain, decode = self._step_cost.seconds(np.array([num_tokens, n], float)).tolist()
        # Each accepted token saves its part of a decode-only step.
        decode = min(decode, plain * n / num_tokens)
        kept = decode * float(report.accepted.sum()) / n
        lost = report.step_seconds + report.draft_seconds - plain - kept
        expected = float(self._draft_cost.seconds(np.array([float(most)]))[0])
        return float(min(lost, expected + _MOST_LOST * plain))

    def _learn(self, report: SpecReport, most: int) -> None:
        depths = self._depths[:most, None]
        asked = np.count_nonzero(report.asked >= depths, axis=1)
        came = np.count_nonzero(report.drafted >= depths, axis=1) / asked
        self._came[:most] += 0.1 * (came - self._came[:most])
        drafted = report.drafted > 0
        # The first rejected draft was verified as well; those after it were not.
        kept = report.accepted[drafted]
        tried = np.minimum(kept + 1, report.drafted[drafted])
        rows = report.rows[drafted]
        decay = _DECAY**tried
        self._kept[rows] = self._kept[rows] * decay + kept
        self._tried[rows] = self._tried[rows] * decay + tried
        self._all_kept = 0.99 * self._all_kept + float(kept.sum())
        self._all_tried = 0.99 * self._all_tried + float(tried.sum())
