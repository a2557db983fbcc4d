"""Recovery from faults of strategies, and of single requests, within a step."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from gatewayd_engine.process.config import FIXED_KINDS
from gatewayd_engine.process.log_context import NO_NAMES, Names, about
from gatewayd_engine.process.plugin_faults import (
    RequestFault,
    StrategyFault,
    attribute_faults,
    faulty_kind,
)
from gatewayd_engine.state.in_flight import Done, Launched
from gatewayd_engine.state.step_batch import StepBatch
from gatewayd_engine.state.step_result import StepResult
from gatewayd_engine.strategies.active import Strategies
from gatewayd_hooks.strategy import Kind

T = TypeVar("T")
_log = logging.getLogger(__name__)
_MAX_REDOS = 8
"""Strategy faults that one step survives before the engine fails."""


def launch_isolating(
    launch: Callable[[StepBatch], Launched],
    batch: StepBatch,
    names_of: Callable[[int], Names] = lambda sequence: NO_NAMES,
) -> Launched:
    """Launch a batch; if that raises, launch its sequences one by one to isolate the failing one.

    Args:
        launch: launches a batch on the runner.
        batch: the step.
        names_of: returns the request ids of a sequence, for the log.

    Raises:
        Exception: the original error, if no sequence can be computed alone either.
    """
    try:
        return launch(batch)
    except Exception as error:  # any error fails single requests, not the engine
        if isinstance(error, StrategyFault) and error.kind in FIXED_KINDS:
            raise  # stored data depends on the strategy's format
        if len(batch) == 1:
            with about(names_of(int(batch.sequences[0]))):
                _log.warning("request failed in a step: %r", error)
            failure = f"{type(error).__name__}: {error}"
            return Done(StepResult.failure(0, "internal_error", failure))
        cause = error
    results = [
        # By contract a batch may be launched again after an exception, and so may its parts.
        launch_isolating(launch, batch.only(index), names_of).result().shifted(index)
        for index in range(len(batch))
    ]
    if all(result.failed for result in results):
        # The engine itself is broken, and must be replaced.
        raise cause
    return Done(StepResult.merge(results))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Recovery:
    """Fault isolation of code that calls strategies, with fallback to the default of a failed one.

    Args:
        strategies: the active strategies.
        rebuild: passes the engine's state to a strategy that takes over.
        fail: ends a request that cannot be served.
    """

    _strategies: Strategies
    _rebuild: Callable[[Kind], None]
    _fail: Callable[[RequestFault], None]

    def fenced(self, action: Callable[[], T], *, redo: bool) -> T | None:
        """Run code that calls strategies; on a fault, fall back to the default.

        An action must have completed, or not started, its changes when a strategy raises, so it
        can be repeated. With ``redo`` False it was complete except for the call, whose effect the
        rebuilding of the default replaces.
        """
        faults = 0
        while faults < _MAX_REDOS:
            try:
                return action()
            except RequestFault as fault:
                # Not counted: with the end of the request its cause is gone.
                self._fail(fault)
            except BaseException as error:  # a strategy may even call sys.exit
                faults += 1
                kind = faulty_kind(error, self._strategies.bound)
                # An error of the engine itself.
                if kind is None:
                    raise
                self.fall_back(kind, error)
                if not redo:
                    return None
        raise RuntimeError(f"{_MAX_REDOS} strategy faults in one step")

    def fall_back(self, kind: Kind, error: BaseException) -> None:
        """Replace a strategy that raised by its default."""
        self._replace_faulty(kind, error, set())

    def fall_back_filling(self, kind: Kind, error: BaseException) -> Kind:
        """Recover from an error that was raised while a new strategy of a kind was filled.

        Returns:
            Kind of the strategy that raised, which is replaced by its default. If that is another
            one, a new instance of the strategy has been filled.
        """
        # An error raised outside of a strategy call was still caused by the new strategy.
        found = faulty_kind(error, self._strategies.bound) or kind
        self._replace_faulty(found, error, {kind} - {found})
        return found

    def _replace_faulty(self, kind: Kind, error: BaseException, unfilled: set[Kind]) -> None:
        """Replace a strategy that raised by its default.

        Args:
            kind: kind of the strategy.
            error: what it raised.
            unfilled: other kinds that it interrupted while they were filled.
        """
        for _ in range(_MAX_REDOS):
            self._strategies.fall_back(kind, error)
            try:
                self._rebuild(kind)
                for other in sorted(unfilled):
                    with attribute_faults(other):
                        self._strategies.reset(other)
                    self._rebuild(other)
            except BaseException as another:
                # Rebuilding one strategy may call another one, which may fail as well.
                found = faulty_kind(another, self._strategies.bound)
                if found is None:
                    raise
                unfilled = (unfilled | {kind}) - {found}
                kind, error = found, another
            else:
                return
        raise error

    def retry_strategies(self) -> None:
        """Retry strategies that failed in the last step and are not quarantined.

        Those that exceed their time budget are treated as failed: they work, but too slowly.
        """
        for kind in self._strategies.drain_retries():
            try:
                self._strategies.bind_configured(kind)
                self._rebuild(kind)
            except BaseException as error:  # noqa: BLE001 - a plugin may raise anything
                self.fall_back_filling(kind, error)
        for overrun in self._strategies.drain_overruns():
            self.fall_back(overrun.kind, StrategyFault(overrun.kind, overrun.reason))
        self._strategies.chain.close_replaced(self._strategies.processors)
        self._strategies.tiers.reopen_failed()
        self._strategies.guides.close_replaced()
