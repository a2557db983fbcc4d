"""The processes that check grammars and have nothing to do now."""

from __future__ import annotations

from gatewayd.guides.process import CheckProcess
from gatewayd_engine.guide_check import CheckConfig


class Unusable(Exception):
    """The guide cannot be loaded or opened."""


class CheckPool:
    """Idle ones, started by the configuration of now; others are ended."""

    def __init__(self) -> None:
        self._idle: list[CheckProcess] = []

    async def take(self, config: CheckConfig) -> CheckProcess:
        """One that is idle, or a fresh one.

        Raises:
            CheckLost: it does not come up.
            OSError: it cannot be started.
            Unusable: the guide cannot be loaded.
        """
        while self._idle:
            process = self._idle.pop()
            if process.config == config:
                return process
            await process.stop()
        return await _started(config)

    async def give_back(self, process: CheckProcess, most: int) -> None:
        """Keep one for the next grammar, unless there are as many as may be."""
        if len(self._idle) < most:
            self._idle.append(process)
        else:
            await process.stop()

    async def refill(self, config: CheckConfig, wanted: int) -> None:
        """Start processes until so many are idle, so that nobody waits for their start.

        Raises:
            CheckLost, OSError, Unusable: as ``take``.
        """
        while len(self._idle) < wanted:
            self._idle.append(await _started(config))

    async def close(self) -> None:
        """End them."""
        idle, self._idle = self._idle, []
        for process in idle:
            await process.stop()


async def _started(config: CheckConfig) -> CheckProcess:
    process, verdict = await CheckProcess.start(config)
    if verdict.refusal:
        await process.stop()
        raise Unusable(verdict.refusal)
    return process
