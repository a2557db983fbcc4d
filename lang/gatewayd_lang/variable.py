"""Result of a ``gen``: its text piece by piece, then the whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from typing import NamedTuple

from gatewayd_lang.loop import submit


class Answer(NamedTuple):
    """Generated text, with its token ids and counts.

    Attributes:
        text: without the stop string.
        ids: its token ids.
        finish_reason: ``stop`` or ``length``.
        stop_reason: the stop string or token of the request that ended it, if any.
        prompt_tokens: tokens before it.
        cached_tokens: of these, those found in the server's cache.
        completion_tokens: generated tokens, including those that ended it.
    """

    text: str
    ids: list[int]
    finish_reason: str
    stop_reason: str | int | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


class Variable:
    """Result of one ``gen`` of one state. Written on the loop, read from any thread."""

    def __init__(self) -> None:
        self._answer: Future[Answer] = Future()
        self._pieces: list[str] = []
        # Bound to the loop at its first wait, so that any thread may create it.
        self._news = asyncio.Event()

    @property
    def is_done(self) -> bool:
        """Whether there is nothing to wait for."""
        return self._answer.done()

    def answer(self) -> Answer:
        """Wait for the end.

        Raises:
            LangError: there is no answer.
        """
        return self._answer.result()

    def pieces(self) -> Iterator[str]:
        """Iterate over the text as it is generated, from its beginning."""
        seen = 0
        while news := submit(self._after(seen)).result():
            seen += len(news)
            yield "".join(news)
        self.answer()

    async def pieces_async(self) -> AsyncIterator[str]:
        """Iterate asynchronously, as ``pieces``."""
        seen = 0
        while news := await asyncio.wrap_future(submit(self._after(seen))):
            seen += len(news)
            yield "".join(news)
        self.answer()

    # The following methods run on the loop.

    def feed(self, text: str) -> None:
        """Add a piece of text."""
        if text:
            self._pieces.append(text)
            self._wake()

    def finish(self, answer: Answer) -> None:
        """Set the complete answer."""
        self._answer.set_result(answer)
        self._wake()

    def fail(self, error: BaseException) -> None:
        """Set the error, which is raised to readers."""
        if not self._answer.done():
            self._answer.set_exception(error)
            self._wake()

    def _wake(self) -> None:
        # A new event for later waits: one that stays set would not wait again.
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def _after(self, seen: int) -> list[str]:
        """Return pieces beyond those seen; empty at the end."""
        # No await between the check and the wait: no piece is missed.
        while len(self._pieces) == seen and not self._answer.done():
            await self._news.wait()
        return self._pieces[seen:]
