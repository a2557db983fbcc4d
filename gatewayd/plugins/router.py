"""Fenced router strategy, whose faults never affect a request."""

from __future__ import annotations

from collections.abc import Sequence

from gatewayd.plugins.fenced import FAULT_LIMIT, Fenced, InvalidStrategyAnswer
from gatewayd_hooks.routing import ReplicaView, RouteRequest, RouterStrategy
from gatewayd_hooks.strategy import Kind

__all__ = ["FAULT_LIMIT", "FencedRouter"]


class FencedRouter(Fenced[RouterStrategy]):
    """Asks the router; falls back to the least loaded replica if that fails."""

    kind = Kind.ROUTER

    def route(self, request: RouteRequest, replicas: Sequence[ReplicaView]) -> int:
        """Choose one of the replicas, of which there is at least one."""
        index = self._call(lambda: self._ask_strategy(request, replicas))
        if index is not None:
            return index
        # Like the default router ``least_loaded``, without its weight of queued prompt tokens.
        return min(replicas, key=lambda view: view.num_running + view.num_waiting).index

    def _ask_strategy(self, request: RouteRequest, replicas: Sequence[ReplicaView]) -> int:
        index: int = self._watched.route(request, replicas)
        # Comparing an answer of an unexpected type may raise, which is a fault, too.
        if any(replica.index == index for replica in replicas):
            return index
        raise InvalidStrategyAnswer(f"chose replica {index!r}, which is not ready")
