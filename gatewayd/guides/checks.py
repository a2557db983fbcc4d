"""Checks grammars before engines see them, in processes that may end by it; see ADR 0015."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from gatewayd.config import GuideTable
from gatewayd.engines.seam import Fleet
from gatewayd.errors import InvalidRequest, StrategyUnavailable
from gatewayd.guides.line import Line
from gatewayd.guides.process import CheckLost, CheckProcess
from gatewayd.launch import NONE
from gatewayd_engine.config import StrategyChoice
from gatewayd_engine.guide_check import CheckConfig, encode
from gatewayd_hooks.guiding import GuideSpec

_log = logging.getLogger(__name__)
_CACHED, _CACHED_CHARS = 1024, 8 << 20
_Key = tuple[GuideSpec, bytes]
"""A grammar, and what it is compiled with."""


class _Answer(NamedTuple):
    """What is told of a grammar: nothing, what is wrong with it, or that nobody can say."""

    refusal: str = ""
    is_fault: bool = False


@dataclass(slots=True, eq=False)
class _Asked:
    """A check, and how many wait for it.

    Attributes:
        task: finds it out.
        waiters: requests.
        has_begun: whether a process looks at it, or will at once.
    """

    task: asyncio.Task[_Answer] | None = None
    waiters: int = 0
    has_begun: bool = False


class GuideChecks:
    """Asks a few processes, which are started when they are needed.

    Args:
        table: the configuration of now; a process that was started by another is replaced.
        folder: of the checkpoint.
        fleet: knows the model.
    """

    def __init__(self, table: Callable[[], GuideTable], folder: str, fleet: Fleet) -> None:
        self._table = table
        self._folder = folder
        self._fleet = fleet
        self._idle: list[CheckProcess] = []
        self._line = Line(lambda: self._table().processes)
        self._asked: dict[_Key, _Asked] = {}
        self._known: OrderedDict[_Key, _Answer] = OrderedDict()
        self._chars = 0

    @property
    def strategy(self) -> str:
        """The guide that grammars are checked with."""
        return self._table().strategy

    async def check(self, spec: GuideSpec, param: str) -> GuideSpec:
        """See that a grammar can be compiled.

        Args:
            spec: what the answer is to follow.
            param: the request's field, for the error.

        Returns:
            The same.

        Raises:
            InvalidRequest: it cannot; the sentence says why, or names the limit.
            StrategyUnavailable: nobody can say.
            QueueFull: too many wait for an answer.
        """
        config = self._config(param)
        key = spec, encode(config)
        answer = self._known.get(key)
        if answer is None:
            answer = await self._wait(key, config)
        if answer.is_fault:
            raise StrategyUnavailable(
                f"the guide {config.guide.name} failed on {param}; ask for free text"
            )
        if answer.refusal:
            raise InvalidRequest(f"{param}: {answer.refusal}", param=param, code="invalid_grammar")
        return spec

    async def close(self) -> None:
        """End the processes."""
        for asked in tuple(self._asked.values()):
            if asked.task is not None:
                asked.task.cancel()
        idle, self._idle = self._idle, []
        for process in idle:
            await process.stop()

    def _config(self, param: str) -> CheckConfig:
        table, model = self._table(), self._fleet.model
        if table.strategy == NONE or model is None:
            raise InvalidRequest(
                f"{param} is not supported: this server has no guide ([guide] strategy)",
                param=param,
                code="unsupported_parameter",
            )
        return CheckConfig(
            guide=StrategyChoice(table.strategy, table.settings(table.strategy)),
            folder=self._folder,
            vocab_size=model.vocab_size,
            eos_token_ids=list(model.eos_token_ids),
            seconds=table.compile_seconds,
            memory_bytes=int(table.compile_memory),
        )

    async def _wait(self, key: _Key, config: CheckConfig) -> _Answer:
        """Many ask for the same at once: one process looks at it, and none once all have left."""
        asked = self._asked.get(key)
        if asked is None or asked.task is None:
            asked = self._asked[key] = _Asked()
            asked.task = asyncio.create_task(self._find_out(asked, key, config))
        asked.waiters += 1
        try:
            return await asyncio.shield(asked.task)
        finally:
            asked.waiters -= 1
            # One that a process looks at ends soon, and its answer is good for others.
            if not asked.waiters and not asked.has_begun:
                asked.task.cancel()
                self._drop(key, asked)

    def _drop(self, key: _Key, asked: _Asked) -> None:
        if self._asked.get(key) is asked:
            del self._asked[key]

    async def _find_out(self, asked: _Asked, key: _Key, config: CheckConfig) -> _Answer:
        try:
            await self._line.enter(len(key[0].text))
            asked.has_begun = True
            try:
                return await self._ask(key, config)
            finally:
                self._line.leave()
        finally:
            self._drop(key, asked)

    async def _ask(self, key: _Key, config: CheckConfig) -> _Answer:
        try:
            process = await self._process(config)
        except (CheckLost, OSError, _Unusable) as error:
            _log.error("grammars cannot be checked: %s", error)
            return _Answer(is_fault=True)
        try:
            verdict = await process.ask(key[0])
        except CheckLost as lost:
            # Not remembered: on another day the machine may be less busy.
            if lost.was_slow:
                limit = f"{config.seconds:g} s ([guide] compile_seconds)"
                return _Answer(f"it takes longer to compile than the limit of {limit}; simplify it")
            limit = f"{config.memory_bytes >> 20} MiB ([guide] compile_memory)"
            return _Answer(
                f"it needs more memory to compile than the limit of {limit}; simplify it"
            )
        except BaseException:
            process.kill()
            raise
        self._idle.append(process)
        if verdict.is_fault:
            _log.error("guide %s failed on a grammar: %s", config.guide.name, verdict.refusal)
        answer = _Answer(verdict.refusal, verdict.is_fault)
        self._remember(key, answer)
        return answer

    async def _process(self, config: CheckConfig) -> CheckProcess:
        """One that is idle, or a fresh one."""
        while self._idle:
            process = self._idle.pop()
            if process.config == config:
                return process
            await process.stop()
        process, verdict = await CheckProcess.start(config)
        if verdict.refusal:
            await process.stop()
            raise _Unusable(verdict.refusal)
        return process

    def _remember(self, key: _Key, answer: _Answer) -> None:
        self._known[key] = answer
        self._chars += len(key[0].text)
        while len(self._known) > _CACHED or self._chars > _CACHED_CHARS:
            (spec, _), _ = self._known.popitem(last=False)
            self._chars -= len(spec.text)


class _Unusable(Exception):
    """The guide cannot be loaded or opened."""
