"""What becomes of a step when a strategy, or one of its requests, fails in it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from gatewayd_engine.process.config import FIXED_KINDS
from gatewayd_engine.process.log_context import NOBODY, Names, about
from gatewayd_engine.process.plugin_faults import RequestFault, StrategyFault, culprit
from gatewayd_engine.state.in_flight import Done, Launched
from gatewayd_engine.state.step_batch import StepBatch
from gatewayd_engine.state.step_result import StepResult
from gatewayd_engine.strategies.active import Strategies
from gatewayd_hooks.strategy import Kind

T = TypeVar("T")
_log = logging.getLogger(__name__)
_MAX_REDOS = 8
"""Strategy faults that one step survives before the engine gives up."""


def launch_apart(
    launch: Callable[[StepBatch], Launched],
    batch: StepBatch,
    names_of: Callable[[int], Names] = lambda sequence: NOBODY,
) -> Launched:
    """Launch a batch; if that raises, each of its sequences alone, to find whose fault it is.

    Args:
        launch: of the runner.
        batch: of the step.
        names_of: the request of a sequence, for the log.

    Raises:
        Exception: what was raised, if nothing works alone either.
    """
    try:
        return launch(batch)
    except Exception as error:  # whatever it is, it fails requests, not us
        if isinstance(error, StrategyFault) and error.kind in FIXED_KINDS:
            raise  # all that is kept is in its form
        if len(batch) == 1:
            with about(names_of(int(batch.sequences[0]))):
                _log.warning("request failed in a step: %r", error)
            failure = f"{type(error).__name__}: {error}"
            return Done(StepResult.failure(0, "internal_error", failure))
        cause = error
    results = [
        launch_apart(launch, batch.only(line), names_of).result().shifted(line)
        for line in range(len(batch))
    ]
    if all(result.failed for result in results):
        # It is the engine that is broken, and to be replaced.
        raise cause
    return Done(StepResult.merge(results))


class Recovery:
    """Does what calls strategies, and lets the default take over from one that fails.

    Args:
        strategies: what may fail.
        rebuild: lets a strategy that takes over learn what the engine knows.
        fail: ends a request that cannot be served.
    """

    def __init__(
        self,
        strategies: Strategies,
        rebuild: Callable[[Kind], None],
        fail: Callable[[RequestFault], None],
    ) -> None:
        self._strategies = strategies
        self._rebuild = rebuild
        self._fail = fail

    def fenced(self, action: Callable[[], T], *, redo: bool) -> T | None:
        """Do something that calls strategies; a fault of theirs is answered by the default.

        What an action changes is whole or not begun when a strategy raises, so it may be done
        again. With ``redo`` False it was complete but for the call, and the rebuilding of the
        default makes up for that.
        """
        faults = 0
        while faults < _MAX_REDOS:
            try:
                return action()
            except RequestFault as fault:
                self._fail(fault)
            except BaseException as error:  # a lazy answer may even call sys.exit
                faults += 1
                kind = culprit(error, self._strategies.bound)
                if kind is None:
                    raise
                self.answer(kind, error)
                if not redo:
                    return None
        raise RuntimeError(f"{_MAX_REDOS} strategy faults in one step")

    def answer(self, kind: Kind, error: BaseException) -> None:
        """The default takes over from a strategy that raised."""
        for _ in range(_MAX_REDOS):
            self._strategies.fall_back(kind, error)
            try:
                self._rebuild(kind)
            except BaseException as another:
                # Rebuilding one may ask another, which may fail as well.
                found = culprit(another, self._strategies.bound)
                if found is None:
                    raise
                kind, error = found, another
            else:
                return
        raise error

    def retry_strategies(self) -> None:
        """Strategies that failed in the last step, and not too often, get another chance.

        Those that keep exceeding their budget have failed too: they answer well, but late.
        """
        for kind in self._strategies.take_retries():
            try:
                self._strategies.bind_configured(kind)
                self._rebuild(kind)
            except BaseException as error:  # noqa: BLE001 - a plugin may raise anything
                self.answer(kind, error)
        for overrun in self._strategies.take_overruns():
            self.answer(overrun.kind, StrategyFault(overrun.kind, overrun.reason))
        self._strategies.chain.close_replaced(self._strategies.processors)
        self._strategies.tiers.renew()
        self._strategies.guides.close_replaced()
