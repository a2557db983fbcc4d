"""Chooses the replica with the least to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.routing import ReplicaView, RouteRequest
from gatewayd_route_least_loaded.config import LeastLoadedConfig

if TYPE_CHECKING:
    from gatewayd_hooks.resources import GatewayResources


class LeastLoaded:
    """Looks at every replica, for each request; of equals the first is chosen."""

    def __init__(self, config: LeastLoadedConfig) -> None:
        self._tokens_per_sequence = config.tokens_per_sequence

    def open(self, resources: GatewayResources) -> None:
        """Nothing to take."""

    def close(self) -> None:
        """Nothing to give back."""

    def route(self, request: RouteRequest, replicas: Sequence[ReplicaView]) -> int:
        """Choose a replica."""
        return min(replicas, key=self._load).index

    def _load(self, replica: ReplicaView) -> tuple[float, float]:
        # A prompt not yet computed holds up everything behind it; a full pool preempts.
        sequences = replica.num_running + replica.num_waiting
        return sequences + replica.queued_tokens / self._tokens_per_sequence, replica.kv_usage
