"""State that all states of one run of a program share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

from gatewayd_lang.errors import LangError
from gatewayd_lang.server import Server

T = TypeVar("T")

_NOT_BEGUN = 0
"""Not the id of any thread."""


class Run:
    """Server and pending steps of a run, and whether more may be appended.

    Attributes:
        server: of the program.
        streams: whether output is read while it is generated.
        returned: what the program's function returned.
        error: what it raised, or why it was ended.
    """

    def __init__(self, server: Server, *, streams: bool = False) -> None:
        self.server = server
        self.streams = streams
        self.returned: object = None
        self.error: BaseException | None = None
        # Thread that may still append pieces; None once the run has ended.
        self._author: int | None = _NOT_BEGUN
        self._changed = threading.Condition()
        self._steps: list[Future[None]] = []
        self._seen_errors: set[BaseException] = set()

    def perform(self, work: Callable[[], object]) -> None:
        """Run the program's function in this thread, and wait for what it has appended."""
        with self._changed:
            # Ended before it began, such as by an interrupted batch: nothing more will come.
            if self.error is not None:
                return
            self._author = threading.get_ident()
        try:
            self.returned = work()
            self._settle()
        except BaseException as error:  # noqa: BLE001 - raised by the caller of the program
            self.finish(error)
        else:
            self.finish()

    def add(self, step: Future[None]) -> None:
        """Add a step that was appended to one of the states."""
        with self._changed:
            self._steps.append(step)
            self._changed.notify_all()
        # After appending: `finish` has either cancelled it or set the error by now.
        if self.error is not None:
            step.cancel()

    def result(self, step: Future[None]) -> None:
        """Wait for a step.

        Raises:
            LangError: it has failed, or the program was ended before.
        """
        if not step.cancelled():
            step.result()
        elif isinstance(self.error, LangError):
            raise self.error
        else:
            raise LangError("the program was ended before this was done") from self.error

    @contextmanager
    def marking_errors_seen(self) -> Iterator[None]:
        """Mark errors raised in the context as seen by the program, which may handle them."""
        try:
            yield
        except LangError as error:
            self._seen_errors.add(error)
            raise

    def _settle(self) -> None:
        """Wait until every state has completed its steps.

        Raises:
            LangError: one has failed, and the program has not seen the error.
        """
        # Branches that the program never joined are waited for as well.
        for step in self._steps:
            try:
                self.result(step)
            except LangError as error:
                if error not in self._seen_errors:
                    raise

    def finish(self, error: BaseException | None = None) -> None:
        """End the run; after an error, pending steps are cancelled."""
        with self._changed:
            # The first error stays: later ones are consequences.
            self.error, self._author = self.error or error, None
            steps = list(self._steps) if error is not None else []
            self._changed.notify_all()
        for step in steps:
            step.cancel()

    def wait_for(self, look: Callable[[], T | None]) -> T | None:
        """Wait until ``look`` finds something; None if nothing more can come.

        The function's own thread cannot wait for what only it can append.
        """
        with self._changed:
            # Under the condition's lock, so that a piece appended after `look` is not missed.
            while (found := look()) is None and self._author not in (None, threading.get_ident()):
                self._changed.wait()
        return found
