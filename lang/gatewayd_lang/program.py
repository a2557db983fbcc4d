"""Programs: functions whose first argument is a state."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from gatewayd_lang.batch import Progress, run_all
from gatewayd_lang.run import Run
from gatewayd_lang.server import Server, default_server
from gatewayd_lang.state import State

P = ParamSpec("P")
R = TypeVar("R")


class Program(Generic[P, R]):
    """Function of a state, and the ways to run it."""

    def __init__(
        self, body: Callable[Concatenate[State, P], R], server: Server | None = None
    ) -> None:
        """Wrap a function.

        Args:
            body: takes the state first; it appends to it.
            server: to run it on; by default the default one.

        Raises:
            TypeError: it is a coroutine function.
        """
        if inspect.iscoroutinefunction(body):
            raise TypeError(
                f"{body.__name__} is a coroutine function; write `def`, and await its `arun`"
            )
        functools.update_wrapper(self, body)
        self._body = body
        self._server = server

    def __call__(self, state: State, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run it as a part of another program, on that one's state."""
        return self._body(state, *args, **kwargs)

    def on(self, server: Server) -> Program[P, R]:
        """Return the same program on a specific server."""
        return Program(self._body, server)

    def run(self, *args: P.args, **kwargs: P.kwargs) -> State:
        """Run it to its end.

        Raises:
            LangError: a step of its state has failed; or whatever the function raises.
        """
        state = self._new_state()
        self._perform(state, args, kwargs)
        if state.error is not None:
            raise state.error
        return state

    async def arun(self, *args: P.args, **kwargs: P.kwargs) -> State:
        """Run it without blocking; the function runs in a separate thread."""
        state = self._new_state()
        done: Future[None] = Future()
        self._in_a_thread(state, args, kwargs, done)
        try:
            await asyncio.wrap_future(done)
        except asyncio.CancelledError as error:
            state.end(error)
            raise
        if state.error is not None:
            raise state.error
        return state

    def stream(self, *args: P.args, **kwargs: P.kwargs) -> State:
        """Start it and return the state at once, to read it while it grows.

        ``for piece in f.stream(...).text_iter("answer")``. Errors are raised on reading.
        """
        state = self._new_state(streams=True)
        self._in_a_thread(state, args, kwargs, Future())
        return state

    def run_batch(
        self,
        batch: Sequence[Mapping[str, Any]],
        *,
        concurrency: int = 16,
        progress: Progress | bool = False,
    ) -> list[State]:
        """Run it for many arguments, with limited concurrency.

        A failed run does not end the others: its state has an ``error``, and raises it on reading.

        Args:
            batch: named arguments of each run.
            concurrency: maximum of concurrent runs, each in a thread.
            progress: called with the number of completed runs and their total; True shows it on
                stderr.

        Returns:
            A state for each, in order.
        """
        states = [self._new_state() for _ in batch]
        works = [
            functools.partial(self._perform, state, (), arguments)
            for state, arguments in zip(states, batch, strict=True)
        ]

        def end(error: BaseException) -> None:
            # Also those that have not begun: their function then does not run.
            for state in states:
                state.end(error)

        run_all(works, concurrency, progress, end)
        return states

    def _new_state(self, *, streams: bool = False) -> State:
        return State(Run(self._server or default_server(), streams=streams))

    def _perform(self, state: State, args: Any, kwargs: Any) -> None:  # noqa: ANN401 - the body's
        state.perform(lambda: self._body(state, *args, **kwargs))

    def _in_a_thread(
        self,
        state: State,
        args: Any,  # noqa: ANN401
        kwargs: Any,  # noqa: ANN401
        done: Future[None],
    ) -> None:
        # Cancelling its awaiter would otherwise cancel it, and `set_result` would raise.
        done.set_running_or_notify_cancel()

        def run_thread() -> None:
            self._perform(state, args, kwargs)
            done.set_result(None)

        name = f"gatewayd-lang-{getattr(self, '__name__', 'program')}"
        threading.Thread(target=run_thread, name=name, daemon=True).start()


def function(body: Callable[Concatenate[State, P], R]) -> Program[P, R]:
    """Turn a function into a program: ``@function def f(s, question): s += ...``."""
    return Program(body)
