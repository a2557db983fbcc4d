"""The pool of idle grammar-checker processes."""

from __future__ import annotations

from gatewayd.engines.grammar_checks.process import CheckProcess
from gatewayd_engine.sampling.guides.check_process import CheckConfig


class CheckerUnusable(Exception):
    """The guide cannot be loaded or opened."""


class CheckPool:
    """Idle checkers with the present configuration; those with an older one are stopped."""

    def __init__(self) -> None:
        self._idle: list[CheckProcess] = []

    async def acquire(self, config: CheckConfig) -> CheckProcess:
        """Return an idle checker, or a new one.

        Raises:
            CheckLost: it died while starting.
            CheckerNotSandboxed: applying the confinement failed.
            OSError: it cannot be started.
            CheckerUnusable: the guide cannot be loaded.
        """
        while self._idle:
            process = self._idle.pop()
            if process.config == config:
                return process
            await process.stop()
        return await _started(config)

    async def release(self, process: CheckProcess, most: int) -> None:
        """Return a checker to the pool, or stop it if the pool has ``most``."""
        if len(self._idle) < most:
            self._idle.append(process)
        else:
            await process.stop()

    async def refill(self, config: CheckConfig, wanted: int) -> None:
        """Start checkers until ``wanted`` are idle, so that no request waits for a start.

        Raises:
            CheckLost, CheckerNotSandboxed, OSError, CheckerUnusable: as ``acquire``.
        """
        while len(self._idle) < wanted:
            self._idle.append(await _started(config))

    async def close(self) -> None:
        """Stop all idle checkers."""
        idle, self._idle = self._idle, []
        for process in idle:
            await process.stop()


async def _started(config: CheckConfig) -> CheckProcess:
    process, verdict = await CheckProcess.start(config)
    if verdict.refusal:
        await process.stop()
        raise CheckerUnusable(verdict.refusal)
    return process
