"""Pulls of the daemon, each in a process that all clients which ask for the model share.

The process is ``gatewayd model pull --json``: the daemon does not load huggingface's library, and a
pull that is stopped leaves no partial file. It is stopped when its last client disconnects.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
from collections.abc import AsyncGenerator, Collection, Sequence
from pathlib import Path

import msgspec

from gatewayd.hub.errors import BUSY, STATUSES, UNREACHABLE, HubError
from gatewayd.hub.pull_events import PullEvent, PullFailure, decode_line
from gatewayd.hub.reference import HubReference
from gatewayd.hub.store import store_folder
from gatewayd_hooks.helpers import children

_log = logging.getLogger(__name__)

PULL_COMMAND = children.python("-m", "gatewayd", "model", "pull", "--json")

_MOST = 4
"""Limit of simultaneous pulls."""
_STOP_SECONDS = 5.0
_PASSED = frozenset(
    ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")
)
"""Variables of a pull beside huggingface's, in upper or lower case."""


class ModelPulls:
    """Runs pulls; called from the event loop only.

    Args:
        command: starts a pull, without the name of the model.
    """

    def __init__(self, command: Sequence[str] = PULL_COMMAND) -> None:
        self._command = tuple(command)
        self._running: dict[HubReference, _SharedPull] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def repos(self) -> Collection[str]:
        """Repositories of which a model is being pulled."""
        return {reference.repo for reference in self._running}

    async def pull(self, reference: HubReference) -> AsyncGenerator[PullEvent, None]:
        """Pull a model, or join the pull of it that is running.

        A slow reader gets the latest progress of each file.

        Raises:
            HubError: it cannot be fetched, or too many others are being pulled.
        """
        shared = self._running.get(reference)
        # One whose last client has left is ending, and not joined.
        if shared is None or shared.is_abandoned:
            if self._is_closed:
                raise HubError("the daemon is stopping", BUSY)
            if len(self._tasks) >= _MOST:
                raise HubError(
                    f"{_MOST} models are being pulled, which is the limit; wait for one", BUSY
                )
            shared = self._start(reference)
        async with contextlib.aclosing(shared.follow()) as events:
            async for event in events:
                yield event

    async def close(self) -> None:
        """Stop all pulls, and refuse others."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, reference: HubReference) -> _SharedPull:
        shared = self._running[reference] = _SharedPull((*self._command, str(reference)))
        self._tasks.add(shared.task)

        def forget(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if self._running.get(reference) is shared:
                del self._running[reference]

        shared.task.add_done_callback(forget)
        return shared


class _SharedPull:
    """A pull and its followers.

    Attributes:
        task: reads the progress; stops the process when it is cancelled.
        is_abandoned: whether its last follower has left before its end.
    """

    def __init__(self, command: Sequence[str]) -> None:
        # In the order of their changes.
        self._latest: dict[tuple[str, str], tuple[int, PullEvent]] = {}
        self._count = 0
        self._changed = asyncio.Event()
        self._failure: HubError | None = None
        self._num_followers = 0
        self.is_abandoned = False
        self.task = asyncio.create_task(self._run(command), name="pull")
        self.task.add_done_callback(lambda _: self._notify())

    async def follow(self) -> AsyncGenerator[PullEvent, None]:
        """Yield the progress, from the beginning; the pull ends with its last follower.

        Raises:
            HubError: the pull has failed.
        """
        self._num_followers += 1
        seen = 0
        try:
            while True:
                changed, is_over = self._changed, self.task.done()
                news = self._since(seen)
                seen = self._count
                for event in news:
                    yield event
                if is_over:
                    if self.task.cancelled():
                        raise HubError("the pull was stopped", BUSY)
                    if (error := self.task.exception()) is not None:
                        _log.error("a pull failed", exc_info=error)
                        raise HubError("the pull failed; the log has the reason", UNREACHABLE)
                    if self._failure is not None:
                        raise self._failure
                    return
                await changed.wait()
        finally:
            self._num_followers -= 1
            if not self._num_followers:
                self.is_abandoned = True
                self.task.cancel()

    def _since(self, seen: int) -> list[PullEvent]:
        """Return the latest events after a number of them, in their order."""
        latest = reversed(self._latest.values())
        news = [one for _, one in itertools.takewhile(lambda each: each[0] > seen, latest)]
        return news[::-1]

    async def _run(self, command: Sequence[str]) -> None:
        try:
            process = await children.start_async(
                command,
                env=pull_environment(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            self._failure = HubError(f"cannot start a pull: {error.strerror}", UNREACHABLE)
            return
        try:
            await self._read(process)
        finally:
            await _stop(process)

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        if process.stdout is None:
            raise RuntimeError("the process has no output to read")
        is_done = False
        while line := await process.stdout.readline():
            try:
                event = decode_line(line)
            except msgspec.DecodeError:
                continue  # a library's own output
            if isinstance(event, PullFailure):
                code = event.code if event.code in STATUSES else UNREACHABLE
                self._failure = HubError(event.error, code)
            else:
                is_done = event.stage == "done"
                self._count += 1
                key = event.stage, event.file
                self._latest.pop(key, None)
                self._latest[key] = (self._count, event)
                self._notify()
        status = await process.wait()
        if self._failure is None and not is_done:
            self._failure = HubError(
                f"the pull ended with status {status}; the log has the reason", UNREACHABLE
            )

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    # Interrupted, not killed, so that it removes what is incomplete.
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(_STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _token_credential() -> Path | None:
    """Return the file of the service's credential; None if there is none, or it is empty."""
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    if folder is None:
        return None
    file = Path(folder) / "hf-token"
    try:
        return file if file.read_text().strip() else None
    except OSError:
        return None


def pull_environment() -> dict[str, str]:
    """The environment of a pull: the only child process that gets the Hub's token."""
    more = {"HF_HUB_CACHE": str(store_folder())}
    if (credential := _token_credential()) is not None and "HF_TOKEN_PATH" not in os.environ:
        more["HF_TOKEN_PATH"] = str(credential)
    names = [name for name in os.environ if name.startswith("HF_") or name.upper() in _PASSED]
    # Relative paths are those of this process, not of the child's working folder.
    return children.environment(more, names)
