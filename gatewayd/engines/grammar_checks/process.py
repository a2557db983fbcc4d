"""A disposable process that compiles grammars within time and memory limits."""

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
"""Factor on the compile limit after which a process that has not ended itself is killed."""


@functools.cache
def _warn_unsandboxed(reason: str) -> None:
    """Log the missing sandbox, once for each reason."""
    _log.warning("grammar checkers run without a sandbox: %s", reason)


class CheckLost(Exception):
    """The checker process has died.

    Attributes:
        was_slow: whether it exceeded the time limit.
    """

    def __init__(self, *, was_slow: bool, status: int | None = None) -> None:
        with_status = "" if status is None else f" with status {status}"
        super().__init__(f"the checker process ended{with_status}")
        self.was_slow = was_slow


class CheckerNotSandboxed(Exception):
    """The system supports confinement, but applying it failed; the message says why."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the checker process could not be confined: {why}")


class CheckProcess:
    """A checker child process; handles one request at a time.

    Args:
        child: the process.
        config: its configuration.
    """

    def __init__(self, child: asyncio.subprocess.Process, config: CheckConfig) -> None:
        self._child = child
        self.config = config

    @classmethod
    async def start(cls, config: CheckConfig) -> tuple[CheckProcess, Verdict]:
        """Start a checker; return it with the result of its initialization.

        It is sandboxed and cannot read the store, unless the system lacks the mechanisms or the
        guide cannot be opened there, which is logged. A process that dies, or cannot be sandboxed,
        does not justify running without: a client may have exhausted the memory.

        Raises:
            CheckLost: it died while starting.
            CheckerNotSandboxed: the system supports confinement, but applying it failed twice.
            OSError: it cannot be started.
        """
        process, verdict = await cls._start_confined(config)
        if verdict.note:
            _warn_unsandboxed(verdict.note)
        if not verdict.refusal:
            return process, verdict
        why = verdict.refusal
        await process.stop()
        process, verdict = await cls._start(config, COMMAND)
        if not verdict.refusal:
            _warn_unsandboxed(f"the guide {config.guide.name} needs more than its own files: {why}")
        return process, verdict

    @classmethod
    async def _start_confined(cls, config: CheckConfig) -> tuple[CheckProcess, Verdict]:
        """Start a sandboxed checker, with one retry, since memory may have been short for a moment.

        Raises:
            CheckLost: the second one died, too.
            CheckerNotSandboxed: the second one could not be confined.
        """
        command = (*CONFINED, config.folder)
        try:
            return await cls._confined(config, command)
        except CheckerNotSandboxed as failed:
            _log.warning("%s; retrying", failed)
        except CheckLost as lost:
            # Another start would take as long again.
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
            raise CheckerNotSandboxed(verdict.refusal)
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
            # The caller has no reference to it yet.
            process.kill()
            raise

    async def check(self, spec: GuideSpec) -> Verdict:
        """Compile a grammar and return the verdict.

        Raises:
            CheckLost: it exceeded a limit.
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
            # A process that has ended has closed its pipes: a short read, or EPIPE.
            status = await self._ended()
            # The checker's own timer ends it by SIGALRM; other exits count as a lack of memory.
            raise CheckLost(was_slow=status == -signal.SIGALRM, status=status) from None

    async def _ended(self) -> int:
        """The exit status of a process that has closed its output.

        It is not killed at once: Popen polls before it signals, and would reap the status of a dead
        process before asyncio, which then reports 255.
        """
        try:
            async with asyncio.timeout(_EXIT_SECONDS):
                return await self._child.wait()
        except TimeoutError:
            self.kill()
            return await self._child.wait()

    def kill(self) -> None:
        """Kill the process."""
        with contextlib.suppress(ProcessLookupError):
            self._child.kill()

    async def stop(self) -> None:
        """Kill the process and wait."""
        self.kill()
        await self._child.wait()
