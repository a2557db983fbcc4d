"""Fenced model router, whose faults never affect a request."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gatewayd.plugins.fenced import Fenced, InvalidStrategyAnswer
from gatewayd_hooks.strategy import Kind
from gatewayd_hooks.targets.model_routing import (
    AttemptVerdict,
    AttemptView,
    CandidateView,
    Decision,
    ModelRouterStrategy,
    RoutedRequest,
)


class FencedModelRouter(Fenced[ModelRouterStrategy]):
    """Asks the model router; the configured order of targets applies if that fails."""

    kind = Kind.MODEL_ROUTER

    def route(self, request: RoutedRequest, candidates: Sequence[CandidateView]) -> Decision:
        """Order the candidates, of which there is at least one."""
        decision = self._call(lambda: self._ask_strategy(request, candidates))
        if decision is not None:
            return decision
        why = "is not called any more" if self.is_quarantined else "failed"
        return Decision(
            [one.name for one in candidates], f"{self._label} {why}: the configured order applies"
        )

    def judge(self, attempt: AttemptView) -> AttemptVerdict:
        """Judge an answer; it is accepted if that fails."""
        verdict = self._call(lambda: self._ask_verdict(attempt))
        return verdict or AttemptVerdict(
            is_accepted=True, reason=f"{self._label} could not judge it"
        )

    def _ask_strategy(
        self, request: RoutedRequest, candidates: Sequence[CandidateView]
    ) -> Decision:
        decision = self._watched.route(request, candidates)
        if not isinstance(decision, Decision):
            raise InvalidStrategyAnswer(f"answered {decision!r:.80}, which is not a Decision")
        order, known = list(decision.order), {one.name for one in candidates}
        if not order or len(set(order)) < len(order) or not known.issuperset(order):
            raise InvalidStrategyAnswer(f"chose {order!r:.200}, which are not targets, each once")
        if not all(map(math.isfinite, decision.scores.values())):
            raise InvalidStrategyAnswer("scored a target with a number that is not finite")
        return decision

    def _ask_verdict(self, attempt: AttemptView) -> AttemptVerdict:
        verdict = self._watched.judge(attempt)
        if isinstance(verdict, AttemptVerdict) and math.isfinite(verdict.score or 0.0):
            return verdict
        raise InvalidStrategyAnswer(
            f"answered {verdict!r:.80}, which is not a valid AttemptVerdict"
        )
