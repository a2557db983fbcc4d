"""Opening of strategies in a background thread, concurrently with steps, with a time limit.

Loading a model from disk takes seconds, and a plugin may hang: running requests must not wait for
either.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from gatewayd_engine.process.config import StrategyChoice
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.host.plugin_times import PluginTimes
from gatewayd_hooks.kv_compression import Compacts
from gatewayd_hooks.resources import EngineResources
from gatewayd_hooks.strategy import Kind

_log = logging.getLogger(__name__)


class NotOpened(Exception):
    """A strategy did not return from ``open`` in time, or tried to end the process."""


class Opener:
    """Factory of opened strategies.

    Args:
        host: loads plugins.
        resources: passed to ``open``.
        plugin_times: measures synchronous openings, and marks background ones.
        seconds: time limit of a background opening.
    """

    def __init__(
        self,
        host: PluginHost,
        resources: EngineResources,
        plugin_times: PluginTimes,
        seconds: float,
    ) -> None:
        self._host = host
        self._resources = resources
        self._plugin_times = plugin_times
        self._seconds = seconds

    def open(self, kind: Kind, choice: StrategyChoice) -> Any:  # noqa: ANN401 - any kind
        """Open a strategy synchronously.

        Raises:
            Exception: any error of the strategy.
        """
        strategy = self._host.strategy(kind, choice.name, choice.settings)
        return self._opened(kind, strategy, self._plugin_times.watch(kind, choice.name, strategy))

    def start(self, kind: Kind, choices: Sequence[StrategyChoice]) -> Opening:
        """Start to open strategies in the background."""
        mark = self._plugin_times.marking(kind, [choice.name for choice in choices])
        return Opening(kind, choices, partial(self._open_in_background, kind), mark, self._seconds)

    def _open_in_background(self, kind: Kind, choice: StrategyChoice) -> Any:  # noqa: ANN401 - any kind
        strategy = self._host.strategy(kind, choice.name, choice.settings)
        # Not watched: accounts of ``PluginTimes`` belong to the main thread.
        return self._opened(kind, strategy, strategy)

    def _opened(self, kind: Kind, strategy: Any, watched: Any) -> Any:  # noqa: ANN401 - any kind
        if kind is Kind.KV_COMPRESSION:
            self._check_compression(strategy)
        try:
            watched.open(self._resources)
        except BaseException:
            # Also after ``SystemExit`` and the like, as it may hold files or threads.
            close(kind, watched)
            raise
        return strategy

    def _check_compression(self, strategy: object) -> None:
        """Refuse a KV compression that the model's KV cache cannot hold.

        Raises:
            ValueError: it makes keys and values of its own, and the model has one vector for both.
        """
        shape = self._resources.kv_shape
        if shape is not None and shape.values_are_keys and isinstance(strategy, Compacts):
            raise ValueError(
                "it compacts keys and values, but the values of this model are its keys (latent"
                ' attention); set [kv_compression] strategy to one that selects, or to "none"'
            )


class _Opened(NamedTuple):
    """An opened strategy, and the seconds that opening took."""

    choice: StrategyChoice
    strategy: Any
    seconds: float


class Opening:
    """Background opening of strategies of one kind, one after the other.

    Args:
        kind: kind of the strategies.
        choices: strategies to open; with none it is over at once.
        make: returns an opened strategy; called in the thread.
        mark: called in the thread with the name of the strategy being opened, None at the end.
        seconds: time limit for all of them together.
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
        self._is_cancelled = False
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
        except BaseException as error:  # noqa: BLE001 - raised again by ``result``
            self._error = error
        with self._lock:
            # Before it is visibly over, because afterwards the mark may be another opening's.
            if not self._is_cancelled:
                self._mark(None)
            self._is_done = True
            is_cancelled = self._is_cancelled
        # Outside of the lock, as ``close`` of a plugin may take any time.
        if is_cancelled:
            self.close_rest()

    def _marked(self, choice: StrategyChoice) -> bool:
        """Mark the next strategy to open; return False after cancellation."""
        with self._lock:
            if not self._is_cancelled:
                # The lock keeps a cancelled thread from marking a strategy after ``cancel`` has
                # cleared the mark.
                self._now = choice.name
                self._mark(choice.name)
            return not self._is_cancelled

    @property
    def is_over(self) -> bool:
        """Whether all are open, opening failed, or the time limit is exceeded."""
        return self._is_done or time.monotonic() >= self._until

    def result(self) -> dict[str, float]:
        """Return the result; call only when it is over.

        Returns:
            Seconds that each took, by name.

        Raises:
            Exception: the error of one of them; all that were opened are closed.
        """
        if not self._is_done:
            self.cancel()
            raise NotOpened(
                f"{self._kind}.{self._now} did not return from open within {self._seconds:g} s"
            )
        if self._error is not None:
            self.close_rest()
            # ``SystemExit`` and ``KeyboardInterrupt`` of a plugin must not end the engine.
            if isinstance(self._error, Exception):
                raise self._error
            raise NotOpened(f"{self._kind}.{self._now} raised {self._error!r} in open")
        return {one.choice.name: one.seconds for one in self._opened}

    def pop(self, choice: StrategyChoice) -> Any:  # noqa: ANN401 - any kind
        """Pop the strategy opened for a choice; the caller must close it.

        Returns:
            The strategy; None if there is none.
        """
        for one in self._opened:
            if one.choice is choice:
                self._opened.remove(one)
                return one.strategy
        return None

    def cancel(self) -> None:
        """Cancel the opening; the thread closes what it opens, whenever that is.

        No exception is raised in the thread: it might end a thread that the strategy has just
        started, or leave one of its locks held, so that the strategy could not be opened again.
        """
        with self._lock:
            self._is_cancelled = True
            is_done = self._is_done
            # If the engine dies later, the abandoned strategy must not be blamed.
            if not is_done:
                self._mark(None)
        if is_done:
            self.close_rest()

    def wait(self, seconds: float) -> None:
        """Wait until the thread has ended, up to a time limit."""
        if self._choices:
            self._thread.join(seconds)

    def close_rest(self) -> None:
        """Close the opened strategies that were not popped."""
        while self._opened:
            close(self._kind, self._opened.pop().strategy)


def close(kind: Kind, strategy: Any) -> None:  # noqa: ANN401 - any kind, watched or not
    """Close a strategy, and log its errors."""
    try:
        strategy.close()
    except Exception as error:  # noqa: BLE001 - the strategy is discarded anyway
        _log.warning("%s strategy failed while closing: %r", kind, error)
