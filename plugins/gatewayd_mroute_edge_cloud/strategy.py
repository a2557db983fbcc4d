"""Prefers local targets while they have room, else remote ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.targets.model_routing import CandidateView, Decision, RoutedRequest
from gatewayd_mroute_edge_cloud.config import EdgeCloudConfig

if TYPE_CHECKING:
    from gatewayd_hooks.resources import GatewayResources


class EdgeCloud:
    """Compares the forecast wait of local targets with a maximum."""

    def __init__(self, config: EdgeCloudConfig) -> None:
        self._most_seconds = config.most_seconds

    def open(self, resources: GatewayResources) -> None:
        """Do nothing: no resources are needed."""

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def route(self, request: RoutedRequest, candidates: Sequence[CandidateView]) -> Decision:
        """Order the targets: local ones with room, remote ones, busy local ones, all others.

        A score is the number of seconds below the maximum wait; remote targets have none.
        """
        scores = {
            one.name: self._most_seconds - one.queue_seconds for one in candidates if one.is_local
        }

        def place(one: CandidateView) -> tuple[bool, bool, bool]:
            is_busy = one.is_local and not (one.has_room and scores[one.name] >= 0)
            return (not one.is_ready, is_busy, not one.is_local)

        ordered = sorted(candidates, key=place)
        first = ordered[0]
        if not first.is_local:
            reason = "no local target has room"
        elif place(first) == (False, False, False):
            reason = "a local target has room"
        else:
            reason = "no target has room"
        return Decision([one.name for one in ordered], reason, scores)
