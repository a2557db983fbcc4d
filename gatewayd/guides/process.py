"""One process that compiles grammars to see what comes of it; it may not live long."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import signal
from collections.abc import Sequence

import msgspec

from gatewayd_engine.guide_check import LENGTH, CheckConfig, Verdict, encode
from gatewayd_hooks import children
from gatewayd_hooks.guiding import GuideSpec

COMMAND = children.python("-m", "gatewayd_engine.guide_check")
CONFINED = children.python("-m", "gatewayd_engine.guide_confined")
_log = logging.getLogger(__name__)
_START_SECONDS = 60.0
_GRACE = 5.0
"""Times the limit of a compilation after which a process is ended that has not ended itself."""


@functools.cache
def _tell(reason: str) -> None:
    """Log it, once."""
    _log.warning("grammar checkers are not sandboxed: %s", reason)


class CheckLost(Exception):
    """The process has ended.

    Attributes:
        was_slow: whether it had taken longer than it may.
    """

    def __init__(self, *, was_slow: bool) -> None:
        super().__init__("the process has ended")
        self.was_slow = was_slow


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

        It cannot read the store. A guide that does not work so is told, and may.

        Raises:
            CheckLost: it does not come up.
            OSError: it cannot be started.
        """
        try:
            process, verdict = await cls._start_confined(config)
        except CheckLost as lost:
            if lost.was_slow:
                raise
            why = str(lost)
        else:
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
        """One that dies at once is tried again: it may have been killed for the memory of others.

        Raises:
            CheckLost: neither comes up.
        """
        command = (*CONFINED, config.folder)
        try:
            return await cls._start(config, command)
        except CheckLost as lost:
            if lost.was_slow:
                raise
        return await cls._start(config, command)

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
        return await self._talk(encode((spec.form, spec.text)), self.config.seconds * _GRACE)

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
            self.kill()
            status = await child.wait()
            raise CheckLost(was_slow=status == -signal.SIGALRM) from None

    def kill(self) -> None:
        """End it."""
        with contextlib.suppress(ProcessLookupError):
            self._child.kill()

    async def stop(self) -> None:
        """End it and wait."""
        self.kill()
        await self._child.wait()
