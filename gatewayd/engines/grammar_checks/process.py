"""One process that compiles grammars to see what comes of it; it may not live long."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import signal
from collections.abc import Sequence

import msgspec

from gatewayd_engine.sampling.guides.check_process import LENGTH, CheckConfig, Verdict, encode
from gatewayd_hooks.guiding import GuideSpec
from gatewayd_hooks.helpers import children

COMMAND = children.python("-m", "gatewayd_engine.sampling.guides.check_process")
CONFINED = children.python("-m", "gatewayd_engine.sampling.guides.check_sandboxed")
_log = logging.getLogger(__name__)
_START_SECONDS = 60.0
_EXIT_SECONDS = 1.0
_GRACE = 5.0
"""Times the limit of a compilation after which a process is ended that has not ended itself."""


@functools.cache
def _tell(reason: str) -> None:
    """Log it, once."""
    _log.warning("grammar checkers run without a sandbox: %s", reason)


class CheckLost(Exception):
    """The process has ended.

    Attributes:
        was_slow: whether it had taken longer than it may.
    """

    def __init__(self, *, was_slow: bool, status: int | None = None) -> None:
        with_status = "" if status is None else f" with status {status}"
        super().__init__(f"the checker process ended{with_status}")
        self.was_slow = was_slow


class NotConfined(Exception):
    """The system supports confinement, but applying it failed; the message says why."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the checker process could not be confined: {why}")


class CheckProcess:
    """A child process; asked one thing after the other.

    Args:
        child: itself.
        config: what it was told.
    """

    def __init__(self, child: asyncio.subprocess.Process, config: CheckConfig) -> None:
        self._child = child
        self.config = config

    @classmethod
    async def start(cls, config: CheckConfig) -> tuple[CheckProcess, Verdict]:
        """Start one; what it says of its configuration.

        It is confined and cannot read the store, unless the system lacks the mechanisms or the
        guide cannot be opened there, which is logged. A process that dies, or cannot be confined,
        is no reason to run without: it may be for lack of memory, which a client can cause.

        Raises:
            CheckLost: it does not come up.
            NotConfined: the system supports confinement, but applying it failed twice.
            OSError: it cannot be started.
        """
        process, verdict = await cls._start_confined(config)
        if verdict.note:
            _tell(verdict.note)
        if not verdict.refusal:
            return process, verdict
        why = verdict.refusal
        await process.stop()
        process, verdict = await cls._start(config, COMMAND)
        if not verdict.refusal:
            _tell(f"the guide {config.guide.name} needs more than its own files: {why}")
        return process, verdict

    @classmethod
    async def _start_confined(cls, config: CheckConfig) -> tuple[CheckProcess, Verdict]:
        """Start it confined; retried once, since memory may have been short for a moment.

        Raises:
            CheckLost: the second one died, too.
            NotConfined: the second one could not be confined.
        """
        command = (*CONFINED, config.folder)
        try:
            return await cls._confined(config, command)
        except NotConfined as failed:
            _log.warning("%s; retrying", failed)
        except CheckLost as lost:
            if lost.was_slow:
                raise
        return await cls._confined(config, command)

    @classmethod
    async def _confined(
        cls, config: CheckConfig, command: Sequence[str]
    ) -> tuple[CheckProcess, Verdict]:
        process, verdict = await cls._start(config, command)
        if verdict.is_unconfined:
            await process.stop()
            raise NotConfined(verdict.refusal)
        return process, verdict

    @classmethod
    async def _start(
        cls, config: CheckConfig, command: Sequence[str]
    ) -> tuple[CheckProcess, Verdict]:
        child = await children.start_async(
            command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        process = cls(child, config)
        try:
            return process, await process._talk(encode(config), _START_SECONDS)
        except BaseException:
            process.kill()
            raise

    async def ask(self, spec: GuideSpec) -> Verdict:
        """What becomes of a grammar.

        Raises:
            CheckLost: it took too much.
        """
        return await self._talk(encode(spec), self.config.seconds * _GRACE)

    async def _talk(self, frame: bytes, seconds: float) -> Verdict:
        child = self._child
        if child.stdin is None or child.stdout is None:
            raise RuntimeError("a process without pipes")
        try:
            async with asyncio.timeout(seconds):
                child.stdin.write(frame)
                await child.stdin.drain()
                (size,) = LENGTH.unpack(await child.stdout.readexactly(LENGTH.size))
                return msgspec.msgpack.decode(await child.stdout.readexactly(size), type=Verdict)
        except TimeoutError:
            self.kill()
            raise CheckLost(was_slow=True) from None
        except (asyncio.IncompleteReadError, OSError):
            status = await self._ended()
            raise CheckLost(was_slow=status == -signal.SIGALRM, status=status) from None

    async def _ended(self) -> int:
        """The exit status of a process that has closed its output.

        It is not killed at once: Popen polls before it signals, and would take the status of one
        that is dead from asyncio, which then says 255.
        """
        try:
            async with asyncio.timeout(_EXIT_SECONDS):
                return await self._child.wait()
        except TimeoutError:
            self.kill()
            return await self._child.wait()

    def kill(self) -> None:
        """End it."""
        with contextlib.suppress(ProcessLookupError):
            self._child.kill()

    async def stop(self) -> None:
        """End it and wait."""
        self.kill()
        await self._child.wait()
