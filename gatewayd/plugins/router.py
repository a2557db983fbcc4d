"""The router strategy behind a fence: its faults never reach a request."""

from __future__ import annotations

from collections.abc import Sequence

from gatewayd.plugins.fenced import FAULT_LIMIT, Fenced, Misbehaved
from gatewayd_hooks.routing import ReplicaView, RouteRequest, RouterStrategy
from gatewayd_hooks.strategy import Kind

__all__ = ["FAULT_LIMIT", "FencedRouter"]


class FencedRouter(Fenced[RouterStrategy]):
    """Asks the strategy, and answers itself when that cannot or names a stranger."""

    kind = Kind.ROUTER

    def route(self, request: RouteRequest, replicas: Sequence[ReplicaView]) -> int:
        """Choose one of the replicas, at least one of which is given."""
        if not self.is_quarantined:
            index = self._call(lambda: self._asked(request, replicas))
            self._note_overruns()
            if index is not None:
                return index
        return min(replicas, key=lambda view: view.num_running + view.num_waiting).index

    def _asked(self, request: RouteRequest, replicas: Sequence[ReplicaView]) -> int:
        index: int = self._watched.route(request, replicas)
        # An answer of a strange type may raise when it is compared: here that is a fault, too.
        if any(replica.index == index for replica in replicas):
            return index
        raise Misbehaved(f"chose replica {index!r}, which is not ready")
