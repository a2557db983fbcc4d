"""Chooses the replica with the lowest load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.routing import ReplicaView, RouteRequest
from gatewayd_route_least_loaded.config import LeastLoadedConfig

if TYPE_CHECKING:
    from gatewayd_hooks.resources import GatewayResources


class LeastLoaded:
    """Compares all replicas for each request; among equals the first is chosen."""

    def __init__(self, config: LeastLoadedConfig) -> None:
        self._tokens_per_sequence = config.tokens_per_sequence

    def open(self, resources: GatewayResources) -> None:
        """Do nothing: no resources are needed."""

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def route(self, request: RouteRequest, replicas: Sequence[ReplicaView]) -> int:
        """Choose a replica."""
        return min(replicas, key=self._load).index

    def _load(self, replica: ReplicaView) -> tuple[float, float]:
        # A prompt not yet computed delays everything after it; a full pool causes preemption.
        sequences = replica.num_running + replica.num_waiting
        return sequences + replica.queued_tokens / self._tokens_per_sequence, replica.kv_usage
