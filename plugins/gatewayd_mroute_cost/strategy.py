"""Chooses the cheapest target that meets what the request's class asks for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.scheduling import Priority
from gatewayd_hooks.targets.model_routing import CandidateView, Decision, RoutedRequest
from gatewayd_mroute_cost.config import CostRouteConfig

if TYPE_CHECKING:
    from gatewayd_hooks.resources import GatewayResources

_CHARS = 4
"""Characters per token, an estimate for texts in English."""
_MILLION = 1_000_000


class CheapestTarget:
    """Compares expected costs of targets that are good and quick enough."""

    def __init__(self, config: CostRouteConfig) -> None:
        self._qualities = {
            Priority.REALTIME: config.realtime_quality,
            Priority.STANDARD: config.standard_quality,
            Priority.BATCH: config.batch_quality,
        }
        self._seconds = {
            Priority.REALTIME: config.realtime_seconds,
            Priority.STANDARD: config.standard_seconds,
            Priority.BATCH: config.batch_seconds,
        }
        self._output = config.output_tokens

    def open(self, resources: GatewayResources) -> None:
        """Do nothing: no resources are needed."""

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def route(self, request: RoutedRequest, candidates: Sequence[CandidateView]) -> Decision:
        """Order the targets: first those that meet everything, each group by expected cost.

        Behind them those that fall short: by what they lack, as the cheapest of these may well be
        the worst.
        """
        costs = {one.name: self._cost(request, one) for one in candidates}

        def place(one: CandidateView) -> tuple[float, ...]:
            lacks = self._lacks(request, one)
            # An unknown quality or cost is no reason to prefer a target.
            return (*lacks, costs[one.name], -(one.quality or 0.0))

        ordered = sorted(candidates, key=place)
        best = ordered[0]
        is_met = not any(self._lacks(request, best))
        what = "the cheapest that meets the class" if is_met else "none meets the class"
        scores = {name: -cost for name, cost in costs.items() if math.isfinite(cost)}
        return Decision([one.name for one in ordered], what, scores)

    def _cost(self, request: RoutedRequest, one: CandidateView) -> float:
        """Return the expected cost; infinite if a price is missing."""
        if one.input_price is None or one.output_price is None:
            return math.inf
        output = min(self._output, request.max_tokens or self._output)
        prompt = request.num_chars / _CHARS
        return (prompt * one.input_price + output * one.output_price) / _MILLION

    def _lacks(self, request: RoutedRequest, one: CandidateView) -> tuple[float, ...]:
        """Return what the target lacks, the gravest first; zeros if it lacks nothing."""
        priority = Priority(request.priority)
        is_late = not one.has_room or one.queue_seconds > self._seconds[priority]
        shortfall = max(0.0, self._qualities[priority] - (one.quality or 0.0))
        is_short = one.context_length is not None and (
            request.num_chars / _CHARS + (request.max_tokens or 1) > one.context_length
        )
        return (float(not one.is_ready), float(is_short), shortfall, float(is_late))
