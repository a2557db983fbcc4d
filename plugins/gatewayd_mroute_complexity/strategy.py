"""Chooses a target by the complexity of the request."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from gatewayd_hooks.targets.model_routing import CandidateView, Decision, RoutedRequest
from gatewayd_mroute_complexity.config import ComplexityConfig
from gatewayd_mroute_complexity.features import complexity

if TYPE_CHECKING:
    from gatewayd_hooks.resources import GatewayResources


class Complexity:
    """The first target up to the first threshold, and so on; the last has no upper bound."""

    def __init__(self, config: ComplexityConfig) -> None:
        self._thresholds = list(config.thresholds)
        self._is_trained = config.scorer == "trained"
        self._name = "trained complexity" if self._is_trained else "complexity"
        self._score: Callable[[RoutedRequest], tuple[float, str]] = complexity

    def open(self, resources: GatewayResources) -> None:
        """Read the weights of the trained scorer, if it is configured."""
        if self._is_trained:
            # Here, as the heuristic needs no numpy.
            from gatewayd_mroute_complexity import trained

            self._score = partial(trained.probability, weights=trained.load())

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def route(self, request: RoutedRequest, candidates: Sequence[CandidateView]) -> Decision:
        """Order the targets: the chosen one, then larger ones, then smaller ones.

        A score is 1 for the target whose interval contains the complexity, and less by the distance
        to the interval for the others.
        """
        value, largest = self._score(request)
        # As many bounds as there are targets above the first.
        bounds = self._thresholds[: len(candidates) - 1]
        # Fewer bounds than targets: the last of these are chosen for fallback only.
        chosen = bisect_right(bounds, value)
        names = [one.name for one in candidates]
        order = [*names[chosen:], *reversed(names[:chosen])]
        resting = {one.name for one in candidates if not one.is_ready}
        order.sort(key=lambda name: name in resting)
        lows = [0.0, *bounds]
        highs = [*bounds, 1.0]
        scores = {
            name: 1 - max(low - value, value - high, 0.0)
            for name, low, high in zip(names, lows, highs, strict=False)
        }
        reason = f"{self._name} {value:.3f}" + (f", mostly by {largest}" if largest else "")
        return Decision(order, reason, scores)
