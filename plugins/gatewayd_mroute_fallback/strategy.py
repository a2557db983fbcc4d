"""Tries the targets of a route in the configured order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.targets.model_routing import CandidateView, Decision, RoutedRequest
from gatewayd_mroute_fallback.config import FallbackConfig

if TYPE_CHECKING:
    from gatewayd_hooks.resources import GatewayResources


class Fallback:
    """The configured order; targets that are not ready come last."""

    def __init__(self, config: FallbackConfig) -> None:
        self._on = tuple(config.on)

    def open(self, resources: GatewayResources) -> None:
        """Do nothing: no resources are needed."""

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def route(self, request: RoutedRequest, candidates: Sequence[CandidateView]) -> Decision:
        """Order the targets."""
        ready = [one.name for one in candidates if one.is_ready]
        resting = [one.name for one in candidates if not one.is_ready]
        if "unavailable" not in self._on:
            ready, resting = [one.name for one in candidates], []
        reason = "the configured order"
        if ready and resting:
            reason += f"; not ready: {', '.join(resting)}"
        scores = {one.name: float(one.is_ready) for one in candidates}
        return Decision([*ready, *resting], reason, scores, self._on)
