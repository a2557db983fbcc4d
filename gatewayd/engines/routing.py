"""The router strategy behind a fence: its faults never reach a request."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from gatewayd_hooks.routing import ReplicaView, RouteRequest, RouterStrategy

_log = logging.getLogger(__name__)

FAULT_LIMIT = 3


class FencedRouter:
    """Asks the strategy, and answers itself when the strategy raises or names a stranger.

    Attributes:
        faults: how often that happened; at ``FAULT_LIMIT`` the strategy is asked no more.
    """

    def __init__(self, strategy: RouterStrategy) -> None:
        self._strategy = strategy
        self.faults = 0

    def route(self, request: RouteRequest, replicas: Sequence[ReplicaView]) -> int:
        """Choose one of the replicas, at least one of which is given."""
        if self.faults < FAULT_LIMIT:
            try:
                index = self._strategy.route(request, replicas)
            except Exception as error:  # noqa: BLE001 - a plugin may raise anything
                self._note(f"raised {type(error).__name__}: {error}")
            else:
                if any(replica.index == index for replica in replicas):
                    return index
                self._note(f"chose replica {index}, which is not ready")
        return min(replicas, key=lambda view: view.num_running + view.num_waiting).index

    def _note(self, what: str) -> None:
        self.faults += 1
        _log.error("the router %s (fault %d of %d)", what, self.faults, FAULT_LIMIT)
