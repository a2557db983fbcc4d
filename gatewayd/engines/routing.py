"""The router strategy behind a fence: its faults never reach a request."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from gatewayd_hooks.fence import Fence, StrategyHang
from gatewayd_hooks.handover import hand_over
from gatewayd_hooks.ledger import Ledger
from gatewayd_hooks.routing import ReplicaView, RouteRequest, RouterStrategy
from gatewayd_hooks.strategy import Kind
from gatewayd_hooks.watchdog import Watchdog

_log = logging.getLogger(__name__)

FAULT_LIMIT = 3


class FencedRouter:
    """Asks the strategy, and answers itself when the strategy cannot.

    It cannot when it raises, names a stranger or does not come back; one that keeps exceeding
    its budget has failed too. At ``FAULT_LIMIT`` faults it is asked no more.

    Args:
        strategy: opened; closed with this.
        name: of the strategy.
        ledger: keeps its account.
        watchdog: interrupts it.

    Attributes:
        name: of the strategy.
        fence: counts its faults.
    """

    def __init__(
        self, strategy: RouterStrategy, name: str, ledger: Ledger, watchdog: Watchdog
    ) -> None:
        self._ledger = ledger
        self._watchdog = watchdog
        self.fence = Fence(FAULT_LIMIT)
        self._seat(strategy, name)

    @property
    def faults(self) -> int:
        """Of the strategy that is asked now, since it was chosen."""
        return self.fence.faults(Kind.ROUTER, self.name)

    @property
    def is_quarantined(self) -> bool:
        """Whether it is asked no more."""
        return self.fence.is_quarantined(Kind.ROUTER, self.name)

    @property
    def strategy(self) -> RouterStrategy:
        """What is asked."""
        return self._strategy

    def replace(self, strategy: RouterStrategy, name: str) -> bool:
        """Ask another strategy from now on; the one before is closed.

        Returns:
            Whether its state was handed over.

        Raises:
            Exception: whatever is wrong with that; the one before goes on.
        """
        watched = self._ledger.watch(Kind.ROUTER, name, strategy)
        self._watchdog.arm()
        try:
            has_state = hand_over(self._watched, watched)
        except Exception:
            self._close(name, watched)
            raise
        finally:
            self._watchdog.disarm()
        self.close()
        self.fence.forgive(Kind.ROUTER, name)
        self._seat(strategy, name)
        return has_state

    def close(self) -> None:
        """Close the strategy."""
        self._close(self.name, self._watched)

    def _close(self, name: str, watched: Any) -> None:  # noqa: ANN401 - as a ledger returns it
        self._watchdog.arm()
        try:
            watched.close()
        except Exception as error:  # noqa: BLE001 - it is gone anyway
            _log.warning("the router %s failed while closing: %r", name, error)
        finally:
            self._watchdog.disarm()

    def _seat(self, strategy: RouterStrategy, name: str) -> None:
        self.name = name
        self._strategy = strategy
        self._watched = self._ledger.watch(Kind.ROUTER, name, strategy)

    def route(self, request: RouteRequest, replicas: Sequence[ReplicaView]) -> int:
        """Choose one of the replicas, at least one of which is given."""
        if not self.is_quarantined:
            index = self._ask(request, replicas)
            for overrun in self._ledger.take_overruns(Kind.ROUTER):
                self._note(overrun.reason)
            if index is not None:
                return index
        return min(replicas, key=lambda view: view.num_running + view.num_waiting).index

    def _ask(self, request: RouteRequest, replicas: Sequence[ReplicaView]) -> int | None:
        self._watchdog.arm()
        began = time.thread_time()
        try:
            index: int = self._watched.route(request, replicas)
            if any(replica.index == index for replica in replicas):
                return index
            self._note(f"chose replica {index!r}, which is not ready")
        except StrategyHang as error:
            self._note(f"hung: {error}")
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            self._note(f"raised {type(error).__name__}: {error}")
        finally:
            self._watchdog.disarm()
            self._ledger.settle_call(Kind.ROUTER, time.thread_time() - began)
        return None

    def _note(self, what: str) -> None:
        is_last = self.fence.record(Kind.ROUTER, self.name)
        _log.error("the router %s %s (fault %d of %d)", self.name, what, self.faults, FAULT_LIMIT)
        if is_last:
            _log.error("router strategy %s is quarantined: too many faults", self.name)
