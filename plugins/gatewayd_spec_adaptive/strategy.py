"""Gives drafts where they are expected to be kept, as long as that makes the whole faster.

What a step brings is the tokens it is expected to keep per second: each further draft of a
sequence is kept only if all before it are, so it brings ``acceptance ** depth``, and it costs
what a step with one token more takes. Drafts are taken in the order of what they bring while the
rate rises (goodput: Liu et al. 2024, arXiv 2406.14066). Both sides are measured all the time: so
a full batch, where every token costs, ends speculation by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gatewayd_hooks.handover import State
from gatewayd_spec_adaptive.cost import StepCost

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gatewayd_hooks.resources import EngineResources
    from gatewayd_hooks.speculation import SpecReport, SpecView
    from gatewayd_spec_adaptive.config import AdaptiveConfig

_DECAY = 0.95
"""Of what is known of a sequence, at each draft that was looked at."""
_PRIOR = 2.0
"""Drafts that count as much as a new sequence's likeness to the others."""
_PROBED = 8
"""Drafts of a try in all, unless that is less than two for each."""
_FIRST_PROBE = 8
_LAST_PROBE = 256
"""Steps without drafts until they are tried again; doubled at each try that does not pay."""
_FORM = "adaptive/1"


class Adaptive:
    """Acceptance by row, cost by step size, and the best trade of the two."""

    def __init__(self, config: AdaptiveConfig) -> None:
        self._config = config
        self._depths = np.arange(1, config.max_drafts + 1)

    def open(self, resources: EngineResources) -> None:
        """Make a place for each row."""
        rows = resources.max_running
        self._tried = np.zeros(rows)
        self._kept = np.zeros(rows)
        self._all_tried, self._all_kept = 4.0, 3.0
        self._hit = 1.0
        self._draft_seconds: float | None = None
        self._cost = StepCost()
        self._until_probe = self._probe_interval = _FIRST_PROBE
        self._settled: int | None = None

    def close(self) -> None:
        """Nothing to give back."""

    def export_state(self) -> State:
        """Give away what is known of all sequences and of steps; rows are introduced anew."""
        acceptance = (self._all_tried, self._all_kept, self._hit)
        probes = (self._until_probe, self._probe_interval)
        return State(_FORM, (acceptance, probes, self._draft_seconds, self._cost))

    def import_state(self, state: State) -> bool:
        """Go on with what another has measured."""
        if state.form != _FORM:
            return False
        acceptance, probes, self._draft_seconds, self._cost = state.content
        self._all_tried, self._all_kept, self._hit = acceptance
        self._until_probe, self._probe_interval = probes
        return True

    def admit(self, row: int) -> None:
        """Think of a new sequence what is known of all."""
        self._tried[row] = self._kept[row] = 0.0
        self._settled = None

    def decide(self, view: SpecView) -> NDArray[np.int64]:
        """Choose the drafts that raise the expected tokens per second most."""
        self._until_probe -= 1
        if self._until_probe > 0 and view.num_tokens == self._settled:
            # Nothing is learnt of drafts before the next try; thinking again costs time as well.
            return np.zeros(len(view.rows), np.int64)
        self._settled = None
        if not self._cost.knows(view.num_tokens):
            # First what the step costs without drafts: that is what they must be better than.
            return np.zeros(len(view.rows), np.int64)
        limits = np.minimum(view.limits, self._config.max_drafts)
        drafts = self._best(view, limits)
        if drafts.any():
            self._until_probe = self._probe_interval = _FIRST_PROBE
            return drafts
        if self._until_probe > 0:
            self._settled = view.num_tokens
            return drafts
        self._probe_interval = min(2 * self._probe_interval, _LAST_PROBE)
        self._until_probe = self._probe_interval
        return self._probe(view, limits)

    def _best(self, view: SpecView, limits: NDArray[np.int64]) -> NDArray[np.int64]:
        n = len(view.rows)
        share = self._all_kept / self._all_tried
        alpha = (self._kept[view.rows] + _PRIOR * share) / (self._tried[view.rows] + _PRIOR)
        gains = alpha[:, None] ** self._depths
        gains[self._depths > limits[:, None]] = 0.0
        flat = gains.ravel()
        order = np.argsort(-flat, kind="stable")[: max(view.budget, 0)]
        order = order[flat[order] > 0.0]
        if not len(order):
            return np.zeros(n, np.int64)
        expected = n + self._hit * np.concatenate([[0.0], np.cumsum(flat[order])])
        computed = view.num_tokens + self._hit * np.arange(len(order) + 1.0)
        seconds = self._cost.seconds(computed)
        seconds[1:] += (self._draft_seconds or 0.0) * self._cost.slowness
        rate = expected / seconds
        best = int(rate.argmax())
        if rate[best] <= rate[0] * (1 + self._config.margin):
            return np.zeros(n, np.int64)
        return np.bincount(order[:best] // gains.shape[1], minlength=n).astype(np.int64)

    def _probe(self, view: SpecView, limits: NDArray[np.int64]) -> NDArray[np.int64]:
        """Some drafts for everyone, to see whether they are kept and what they cost."""
        wanted = np.minimum(limits, max(2, _PROBED // max(len(limits), 1)))
        before = np.cumsum(wanted) - wanted
        drafts: NDArray[np.int64] = np.minimum(wanted, np.maximum(view.budget - before, 0))
        return drafts

    def report(self, report: SpecReport) -> None:
        """Learn acceptance and cost."""
        self._cost.note(report.num_tokens, report.step_seconds)
        if not report.asked.any():
            return
        seconds = report.draft_seconds / self._cost.slowness
        before = seconds if self._draft_seconds is None else self._draft_seconds
        self._draft_seconds = before + 0.15 * (min(seconds, 4 * before) - before)
        drafted = report.drafted > 0
        hit = np.count_nonzero(drafted) / np.count_nonzero(report.asked)
        self._hit += 0.1 * (hit - self._hit)
        # The first draft that is not kept was looked at as well; those behind it were not.
        kept = report.accepted[drafted]
        tried = np.minimum(kept + 1, report.drafted[drafted])
        rows = report.rows[drafted]
        decay = _DECAY**tried
        self._kept[rows] = self._kept[rows] * decay + kept
        self._tried[rows] = self._tried[rows] * decay + tried
        self._all_kept = 0.99 * self._all_kept + float(kept.sum())
        self._all_tried = 0.99 * self._all_tried + float(tried.sum())
