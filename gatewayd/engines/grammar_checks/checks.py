"""Checks grammars in sandboxed processes before engines compile them; see ADR 0015.

Tenants share the processes by fair queueing, charged by the seconds used. Results are cached per
tenant: otherwise response times would reveal which grammars other tenants use.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from gatewayd.config.strategies import NONE
from gatewayd.config.tables import GuideTable
from gatewayd.engines.api import Fleet
from gatewayd.engines.grammar_checks.losses import SECONDS, CheckerLosses
from gatewayd.engines.grammar_checks.pool import CheckerUnusable, CheckPool
from gatewayd.engines.grammar_checks.process import CheckerNotSandboxed, CheckLost
from gatewayd.errors import InvalidRequest, StrategyUnavailable
from gatewayd.fairness.fair_queue import FairQueue
from gatewayd.store.tables import DEFAULT_TENANT
from gatewayd_engine.fairness.tenant_cache import TenantCache
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.sampling.guides.check_process import CheckConfig, encode
from gatewayd_hooks.guiding import GuideSpec

_log = logging.getLogger(__name__)
# Limits of the cache, over all tenants: entries, and characters of their grammars.
_CACHED, _CACHED_CHARS = 1024, 8 << 20
_LEAST_CHARS, _MOST_CHARS = 1 << 10, 64 << 10
"""Queue capacity that a waiting grammar takes, at least and at most, in characters."""
_ROOM_CHARS = 512 << 10
"""Queue capacity, in characters; a single tenant gets half of it."""
_SPARE = 2
"""Processes to keep after one was lost: a replacement, and one for the next tenant."""


class _Answer(NamedTuple):
    """The result of a check: valid, invalid with a reason, or unknown.

    Attributes:
        is_lost: whether the grammar killed its process.
        is_sure: whether the result is deterministic; only then it is cached.
        chars: length of the grammar, which is cached with it.
    """

    refusal: str = ""
    is_fault: bool = False
    is_lost: bool = False
    is_sure: bool = False
    chars: int = 0


_Key = tuple[str, GuideSpec, bytes]
"""A tenant, a grammar, and what it is compiled with."""


@dataclass(slots=True, eq=False)
class _Asked:
    """A pending check and its waiters.

    Attributes:
        answer: future of the result.
        task: performs the check.
        waiters: number of waiting requests.
        has_begun: whether a process checks it, or is about to.
    """

    answer: asyncio.Future[_Answer] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    task: asyncio.Task[None] | None = None
    waiters: int = 0
    has_begun: bool = False


class GuideChecks:
    """Checks grammars in a pool of processes, started on demand.

    Attributes:
        queue: fair queue for the processes.
        losses: rate limit on killed processes.

    Args:
        table: the present configuration; processes with an older one are replaced.
        folder: folder of the checkpoint.
        fleet: provides the model's properties.
    """

    def __init__(self, table: Callable[[], GuideTable], folder: str, fleet: Fleet) -> None:
        self._table = table
        self._folder = folder
        self._fleet = fleet
        self._pool = CheckPool()
        self.queue = FairQueue(
            "grammar checkers", lambda: self._table().processes, most_waiting=_ROOM_CHARS
        )
        self.losses = CheckerLosses()
        self._asked: dict[_Key, _Asked] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._known: TenantCache[tuple[GuideSpec, bytes], _Answer] = TenantCache(
            _CACHED, _CACHED_CHARS, lambda answer: answer.chars
        )

    @property
    def strategy(self) -> str:
        """The guide that grammars are checked with."""
        return self._table().strategy

    async def check(
        self, spec: GuideSpec, param: str, tenant: str = DEFAULT_TENANT, turn: str = ""
    ) -> GuideSpec:
        """Check that a grammar can be compiled.

        Args:
            spec: the grammar.
            param: the request's field, for errors.
            tenant: tenant of the request; its earlier results are cached.
            turn: name under which it is queued; empty for the tenant's.

        Returns:
            The grammar.

        Raises:
            InvalidRequest: it cannot; the message has the reason, or the limit.
            StrategyUnavailable: the guide fails, so the result is unknown.
            NotAdmitted: the queue is full, or the tenant's grammars killed too many
                processes.
        """
        config = self._config(param)
        encoded = encode(config)
        answer = self._known.get(tenant, (spec, encoded))
        if answer is None:
            answer = await self._wait((tenant, spec, encoded), config, turn or tenant)
        if answer.is_fault:
            raise StrategyUnavailable(
                f"the guide {config.guide.name} failed on {param}; ask for free text"
            )
        if answer.refusal:
            raise InvalidRequest(f"{param}: {answer.refusal}", param=param, code="invalid_grammar")
        return spec

    def wake(self) -> None:
        """Grant free slots, since the number of processes may have grown."""
        self.queue.wake()

    async def close(self) -> None:
        """Cancel all checks and stop the processes."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._pool.close()

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

    async def _wait(self, key: _Key, config: CheckConfig, turn: str) -> _Answer:
        """Wait for the shared check of equal grammars; cancel it once all waiters have left."""
        asked = self._asked.get(key)
        if asked is None:
            if key[0] != DEFAULT_TENANT:  # one client of it would block it for all the others
                self.losses.check(key[0])
            asked = self._asked[key] = _Asked()
            asked.task = asyncio.create_task(self._run_check(asked, key, config, turn))
            # The loop has only weak references to tasks; `close` cancels these.
            self._tasks.add(asked.task)
            asked.task.add_done_callback(self._tasks.discard)
        asked.waiters += 1
        try:
            # A waiter that is cancelled must not cancel the result of the others.
            return await asyncio.shield(asked.answer)
        finally:
            asked.waiters -= 1
            # A running check ends soon, and its result may serve others.
            if not asked.waiters and not asked.has_begun and asked.task is not None:
                asked.task.cancel()
                self._discard(key, asked)

    def _discard(self, key: _Key, asked: _Asked) -> None:
        if self._asked.get(key) is asked:
            del self._asked[key]

    async def _run_check(self, asked: _Asked, key: _Key, config: CheckConfig, turn: str) -> None:
        """Deliver the result; replacing a lost process is charged to the tenant that asked."""
        tenant, spec, encoded = key
        answer = asked.answer
        try:
            size = min(max(len(spec.text), _LEAST_CHARS), _MOST_CHARS)
            with await self.queue.acquire(turn, size):
                asked.has_begun = True
                found = await self._compile(spec, config)
                if found.is_sure:
                    self._known.put(tenant, (spec, encoded), found)
                # From here on equal grammars are found in the cache, or checked again.
                self._discard(key, asked)
                answer.set_result(found)
                # Within the slot, so that the tenant is charged for the time of the replacement.
                if found.is_lost:
                    self.losses.record(tenant)
                    self.queue.throttle(turn, SECONDS)
                    await self._replace(config)
        except Exception as error:  # noqa: BLE001 - raised in the waiters
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # mark as retrieved: the waiters may have left
            else:
                _log.exception("cannot restart a grammar checker")
        finally:
            self._discard(key, asked)
            # No effect on a result. Without one the check was cancelled: its waiters have left.
            answer.cancel()

    async def _replace(self, config: CheckConfig) -> None:
        # Without the slot of this check itself.
        others = self.queue.num_running - 1
        await self._pool.refill(config, min(_SPARE, self._table().processes - others))

    async def _compile(self, spec: GuideSpec, config: CheckConfig) -> _Answer:
        try:
            process = await self._pool.acquire(config)
        except (CheckLost, CheckerNotSandboxed, OSError, CheckerUnusable) as error:
            _log.error("cannot check grammars: %s", error)
            return _Answer(is_fault=True)
        try:
            verdict = await process.check(spec)
        except CheckLost as lost:
            # Not cached: the result depends on the load of the machine.
            if lost.was_slow:
                limit = f"{config.seconds:g} s ([guide] compile_seconds)"
                refusal = f"it takes longer to compile than the limit of {limit}; simplify it"
            else:
                limit = f"{config.memory_bytes >> 20} MiB ([guide] compile_memory)"
                refusal = f"it needs more memory to compile than the limit of {limit}; simplify it"
            return _Answer(refusal, is_lost=True)
        except BaseException:
            # Cancelled: the process still compiles the grammar, and cannot be used again.
            process.kill()
            raise
        await self._pool.release(process, self._table().processes)
        if verdict.is_fault:
            _log.error("guide %s failed on a grammar: %s", config.guide.name, verdict.refusal)
        return _Answer(verdict.refusal, verdict.is_fault, is_sure=True, chars=len(spec.text))
