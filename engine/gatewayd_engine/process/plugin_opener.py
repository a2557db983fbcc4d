"""Opens strategies in a thread beside the steps, and waits for them no longer than it is told.

A model is read from disk for seconds, and a plugin may never come back: neither is a reason for
running requests to wait.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from gatewayd_engine.process.config import StrategyChoice
from gatewayd_hooks.host.ledger import Ledger
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.resources import EngineResources
from gatewayd_hooks.strategy import Kind

_log = logging.getLogger(__name__)


class NotOpened(Exception):
    """A strategy does not come back from ``open``, or wants to end the process."""


class Opener:
    """Makes strategies and opens them.

    Args:
        host: loads plugins.
        resources: what they are given.
        ledger: times what is opened between two steps, and says what is opened beside them.
        seconds: that an opening beside the steps may take.
    """

    def __init__(
        self, host: PluginHost, resources: EngineResources, ledger: Ledger, seconds: float
    ) -> None:
        self._host = host
        self._resources = resources
        self._ledger = ledger
        self._seconds = seconds

    def open(self, kind: Kind, choice: StrategyChoice) -> Any:  # noqa: ANN401 - any kind
        """Open a strategy, here and now.

        Raises:
            Exception: whatever is wrong with it.
        """
        strategy = self._host.strategy(kind, choice.name, choice.settings)
        return self._opened(kind, strategy, self._ledger.watch(kind, choice.name, strategy))

    def begin(self, kind: Kind, choices: Sequence[StrategyChoice]) -> Opening:
        """Begin to open strategies beside the steps."""
        mark = self._ledger.marking(kind, [choice.name for choice in choices])
        return Opening(kind, choices, partial(self._open_beside, kind), mark, self._seconds)

    def _open_beside(self, kind: Kind, choice: StrategyChoice) -> Any:  # noqa: ANN401 - any kind
        strategy = self._host.strategy(kind, choice.name, choice.settings)
        return self._opened(kind, strategy, strategy)

    def _opened(self, kind: Kind, strategy: Any, watched: Any) -> Any:  # noqa: ANN401 - any kind
        try:
            watched.open(self._resources)
        except BaseException:
            close(kind, watched)
            raise
        return strategy


class _Opened(NamedTuple):
    """A strategy that is open, and the seconds that this took."""

    choice: StrategyChoice
    strategy: Any
    seconds: float


class Opening:
    """Strategies of one kind, opened one after the other.

    Args:
        kind: theirs.
        choices: what to open; none is over at once.
        make: gives an open strategy; called in the thread.
        mark: told, in the thread, which one is being opened, and None when that is over.
        seconds: that all of them may take together.
    """

    def __init__(
        self,
        kind: Kind,
        choices: Sequence[StrategyChoice],
        make: Callable[[StrategyChoice], Any],
        mark: Callable[[str | None], None],
        seconds: float,
    ) -> None:
        self._kind = kind
        self._choices = tuple(choices)
        self._make = make
        self._mark = mark
        self._seconds = seconds
        self._until = time.monotonic() + seconds
        self._opened: list[_Opened] = []
        self._now = ""
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._is_done = not choices
        self._is_given_up = False
        self._thread = threading.Thread(target=self._work, name=f"open {kind}", daemon=True)
        if choices:
            self._thread.start()

    def _work(self) -> None:
        try:
            for choice in self._choices:
                if not self._marked(choice):
                    break
                began = time.perf_counter()
                strategy = self._make(choice)
                self._opened.append(_Opened(choice, strategy, time.perf_counter() - began))
        except BaseException as error:  # noqa: BLE001 - raised again where somebody waits
            self._error = error
        with self._lock:
            # Before anybody sees that it is over: the mark may be another opening's then.
            if not self._is_given_up:
                self._mark(None)
            self._is_done = True
            is_given_up = self._is_given_up
        if is_given_up:
            self.close_rest()

    def _marked(self, choice: StrategyChoice) -> bool:
        """Say what is opened next; False if nobody wants it any more."""
        with self._lock:
            if not self._is_given_up:
                self._now = choice.name
                self._mark(choice.name)
            return not self._is_given_up

    @property
    def is_over(self) -> bool:
        """Whether they are open, or will not be."""
        return self._is_done or time.monotonic() >= self._until

    def settle(self) -> dict[str, float]:
        """What it came to; only when it is over.

        Returns:
            Seconds that each took, by name.

        Raises:
            Exception: what is wrong with one of them; all that were opened are closed.
        """
        if not self._is_done:
            self.give_up()
            raise NotOpened(
                f"{self._kind}.{self._now} did not return from open within {self._seconds:g} s"
            )
        if self._error is not None:
            self.close_rest()
            if isinstance(self._error, Exception):
                raise self._error
            raise NotOpened(f"{self._kind}.{self._now} raised {self._error!r} in open")
        return {one.choice.name: one.seconds for one in self._opened}

    def take(self, choice: StrategyChoice) -> Any:  # noqa: ANN401 - any kind
        """The strategy that was opened for a choice, whose closing is the caller's from now on.

        Returns:
            None if there is none.
        """
        for one in self._opened:
            if one.choice is choice:
                self._opened.remove(one)
                return one.strategy
        return None

    def give_up(self) -> None:
        """Nobody wants them any more; the thread closes what it opens, whenever that is.

        Nothing is raised in it: that might end a thread which the strategy has just begun, or
        leave one of its locks held, and nobody could open it again.
        """
        with self._lock:
            self._is_given_up = True
            is_done = self._is_done
            if not is_done:
                self._mark(None)
        if is_done:
            self.close_rest()

    def wait(self, seconds: float) -> None:
        """Wait until the thread has ended, so long at most."""
        if self._choices:
            self._thread.join(seconds)

    def close_rest(self) -> None:
        """Close what nobody has taken."""
        while self._opened:
            close(self._kind, self._opened.pop().strategy)


def close(kind: Kind, strategy: Any) -> None:  # noqa: ANN401 - any kind, watched or not
    """Close a strategy, whatever it says to that."""
    try:
        strategy.close()
    except Exception as error:  # noqa: BLE001 - it is gone anyway
        _log.warning("%s strategy failed while closing: %r", kind, error)
