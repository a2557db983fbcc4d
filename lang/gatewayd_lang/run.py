"""One run of a program: what its states have in common."""

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
"""No thread has this number."""


class Run:
    """Its server, the steps under way, and whether more may come.

    Attributes:
        server: of the program.
        streams: whether somebody reads along.
        returned: what the program's function returned.
        error: what it raised, or why it was ended.
    """

    def __init__(self, server: Server, *, streams: bool = False) -> None:
        self.server = server
        self.streams = streams
        self.returned: object = None
        self.error: BaseException | None = None
        self._author: int | None = _NOT_BEGUN
        self._changed = threading.Condition()
        self._steps: list[Future[None]] = []
        self._told: set[BaseException] = set()

    def perform(self, work: Callable[[], object]) -> None:
        """Run the program's function in this thread, and wait for what it has appended."""
        self._author = threading.get_ident()
        if self.error is not None:
            return
        try:
            self.returned = work()
            self._settle()
        except BaseException as error:  # noqa: BLE001 - whoever runs the program raises it
            self.over(error)
        else:
            self.over()

    def add(self, step: Future[None]) -> None:
        """Something was appended to one of the states."""
        with self._changed:
            self._steps.append(step)
            self._changed.notify_all()
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
    def telling(self) -> Iterator[None]:
        """What is raised within is known to the program, which may have an answer to it."""
        try:
            yield
        except LangError as error:
            self._told.add(error)
            raise

    def _settle(self) -> None:
        """Wait until every state has done what was appended to it.

        Raises:
            LangError: one has failed, and nobody was told.
        """
        for step in self._steps:
            try:
                self.result(step)
            except LangError as error:
                if error not in self._told:
                    raise

    def over(self, error: BaseException | None = None) -> None:
        """The function has ended; after an error nobody waits for what is under way."""
        with self._changed:
            self.error, self._author = self.error or error, None
            steps = list(self._steps) if error is not None else []
            self._changed.notify_all()
        for step in steps:
            step.cancel()

    def wait_for(self, look: Callable[[], T | None]) -> T | None:
        """Wait until something is there; None where nothing more comes.

        The function itself cannot wait for what only it can append.
        """
        with self._changed:
            while (found := look()) is None and self._author not in (None, threading.get_ident()):
                self._changed.wait()
        return found
