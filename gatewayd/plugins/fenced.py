"""Fenced plugins of the gateway process, whose faults never affect a request."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from gatewayd_hooks.helpers.handover import hand_over
from gatewayd_hooks.host.fence import Fence, StrategyHang
from gatewayd_hooks.host.plugin_times import PluginTimes
from gatewayd_hooks.host.watchdog import Watchdog
from gatewayd_hooks.strategy import Kind

_log = logging.getLogger(__name__)

FAULT_LIMIT = 3

StrategyT = TypeVar("StrategyT")
AnswerT = TypeVar("AnswerT")


class InvalidStrategyAnswer(Exception):
    """A strategy returned an invalid answer; the message continues a sentence after its name."""


class Fenced(Generic[StrategyT]):
    """A strategy whose calls are timed, and interrupted if they hang.

    ``_call`` also records faults: exceptions, calls that hang, invalid answers, and a repeatedly
    exceeded time budget. After ``FAULT_LIMIT`` faults the strategy is quarantined: not called any
    more.

    Args:
        strategy: closed with this object.
        name: name of the strategy.
        plugin_times: accounts its calls.
        watchdog: interrupts calls that hang.

    Attributes:
        kind: kind of the strategy.
        close_seconds: time limit for closing it; None for the watchdog's own.
        name: name of the strategy.
        fence: counts its faults.
    """

    kind: Kind
    close_seconds: float | None = None

    def __init__(
        self, strategy: StrategyT, name: str, plugin_times: PluginTimes, watchdog: Watchdog
    ) -> None:
        self._plugin_times = plugin_times
        self._watchdog = watchdog
        self.fence = Fence(FAULT_LIMIT)
        self._install(strategy, name)

    @property
    def faults(self) -> int:
        """Faults of the present strategy, since it was chosen."""
        return self.fence.faults(self.kind, self.name)

    @property
    def is_quarantined(self) -> bool:
        """Whether the strategy is not called any more."""
        return self.fence.is_quarantined(self.kind, self.name)

    @property
    def strategy(self) -> StrategyT:
        """The present strategy."""
        return self._strategy

    def replace(self, strategy: StrategyT, name: str) -> bool:
        """Replace the strategy, and close the previous one.

        Returns:
            Whether the previous strategy's state was handed over.

        Raises:
            Exception: any error of the handover; the previous strategy stays.
        """
        watched = self._plugin_times.watch(self.kind, name, strategy)
        try:
            with self._watchdog.armed():
                # Before anything is replaced: after an error the previous strategy stays in use.
                has_state = hand_over(self._watched, watched)
        except Exception:
            self._close(name, watched)
            raise
        self.close()
        # An operator who selects a strategy again wants it to be called again.
        self.fence.reset_faults(self.kind, name)
        self._install(strategy, name)
        return has_state

    def close(self) -> None:
        """Close the strategy."""
        self._close(self.name, self._watched)

    def _close(self, name: str, watched: Any) -> None:  # noqa: ANN401 - as ``watch`` returns it
        try:
            with self._watchdog.armed(self.close_seconds):
                watched.close()
        except Exception as error:  # noqa: BLE001 - it is not used any more
            _log.warning("%s %s failed while closing: %r", self.kind, name, error)

    def _install(self, strategy: StrategyT, name: str) -> None:
        self.name = name
        self._strategy = strategy
        self._watched = self._plugin_times.watch(self.kind, name, strategy)

    def _call(self, call: Callable[[], AnswerT]) -> AnswerT | None:
        """Call the strategy and return its answer.

        None if it is quarantined, or fails, which is recorded as a fault.
        """
        if self.is_quarantined:
            return None
        answer = None
        # Processor time: a call that only waited for other threads is not over its budget.
        began = time.thread_time()
        try:
            with self._watchdog.armed():
                answer = call()
        except InvalidStrategyAnswer as error:
            self._record_fault(str(error))
        except StrategyHang as error:
            self._record_fault(f"hung: {error}")
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            self._record_fault(f"raised {type(error).__name__}: {error}", error)
        finally:
            self._plugin_times.settle_call(self.kind, time.thread_time() - began)
        # Settled above: a single slow call is no fault, repeated ones are.
        for overrun in self._plugin_times.take_overruns(self.kind):
            self._record_fault(overrun.reason)
        return answer

    def _record_fault(self, what: str, error: Exception | None = None) -> None:
        is_last = self.fence.record(self.kind, self.name)
        _log.error(
            "%s %s (fault %d of %d)",
            *(self._label, what, self.faults, FAULT_LIMIT),
            exc_info=error,
        )
        if is_last:
            self._log_quarantine()

    @property
    def _label(self) -> str:
        """What is faulty, for the log."""
        return f"{self.kind} {self.name}"

    def _log_quarantine(self) -> None:
        _log.error("%s strategy %s quarantined: too many faults", self.kind, self.name)
