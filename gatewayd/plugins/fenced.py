"""A strategy that is asked about single requests, behind a fence: its faults never reach one."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

from gatewayd_hooks.helpers.handover import hand_over
from gatewayd_hooks.host.fence import Fence, StrategyHang
from gatewayd_hooks.host.ledger import Ledger
from gatewayd_hooks.host.watchdog import Watchdog
from gatewayd_hooks.strategy import Kind, Strategy

_log = logging.getLogger(__name__)

FAULT_LIMIT = 3

StrategyT = TypeVar("StrategyT", bound=Strategy)
AnswerT = TypeVar("AnswerT")


class Misbehaved(Exception):
    """A strategy answered with what is no answer; the text goes on after its name."""


class Fenced(Generic[StrategyT]):
    """Asks the strategy, and says so when it cannot answer.

    It cannot when it raises or does not come back; one that keeps exceeding its budget has failed
    too. At ``FAULT_LIMIT`` faults it is asked no more.

    Args:
        strategy: opened; closed with this.
        name: of the strategy.
        ledger: keeps its account.
        watchdog: interrupts it.

    Attributes:
        name: of the strategy.
        fence: counts its faults.
    """

    kind: ClassVar[Kind]

    def __init__(self, strategy: StrategyT, name: str, ledger: Ledger, watchdog: Watchdog) -> None:
        self._ledger = ledger
        self._watchdog = watchdog
        self.fence = Fence(FAULT_LIMIT)
        self._seat(strategy, name)

    @property
    def faults(self) -> int:
        """Of the strategy that is asked now, since it was chosen."""
        return self.fence.faults(self.kind, self.name)

    @property
    def is_quarantined(self) -> bool:
        """Whether it is asked no more."""
        return self.fence.is_quarantined(self.kind, self.name)

    @property
    def strategy(self) -> StrategyT:
        """What is asked."""
        return self._strategy

    def replace(self, strategy: StrategyT, name: str) -> bool:
        """Ask another strategy from now on; the one before is closed.

        Returns:
            Whether its state was handed over.

        Raises:
            Exception: whatever is wrong with that; the one before goes on.
        """
        watched = self._ledger.watch(self.kind, name, strategy)
        self._watchdog.arm()
        try:
            has_state = hand_over(self._watched, watched)
        except Exception:
            self._close(name, watched)
            raise
        finally:
            self._watchdog.disarm()
        self.close()
        self.fence.forgive(self.kind, name)
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
            _log.warning("%s %s failed while closing: %r", self.kind, name, error)
        finally:
            self._watchdog.disarm()

    def _seat(self, strategy: StrategyT, name: str) -> None:
        self.name = name
        self._strategy = strategy
        self._watched = self._ledger.watch(self.kind, name, strategy)

    def _call(self, call: Callable[[], AnswerT]) -> AnswerT | None:
        """What a call of the strategy returns; None, and a fault, if it does not."""
        self._watchdog.arm()
        began = time.thread_time()
        try:
            return call()
        except Misbehaved as error:
            self._note(str(error))
        except StrategyHang as error:
            self._note(f"hung: {error}")
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            self._note(f"raised {type(error).__name__}: {error}")
        finally:
            self._watchdog.disarm()
            self._ledger.settle_call(self.kind, time.thread_time() - began)
        return None

    def _note_overruns(self) -> None:
        for overrun in self._ledger.take_overruns(self.kind):
            self._note(overrun.reason)

    def _note(self, what: str) -> None:
        is_last = self.fence.record(self.kind, self.name)
        _log.error(
            "%s %s %s (fault %d of %d)", self.kind, self.name, what, self.faults, FAULT_LIMIT
        )
        if is_last:
            _log.error("%s strategy %s quarantined: too many faults", self.kind, self.name)
