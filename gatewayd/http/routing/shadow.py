"""Shadow copies: answered requests sent to another version as well, whose answers are compared.

A copy is made when the client has its answer, so that it delays nothing that is measured. It has
the lowest priority, is free of charge, and its answer is never sent.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import takewhile

import msgspec

from gatewayd.catalogue.deployment import ShadowFigures
from gatewayd.errors import GatewayError
from gatewayd.http.routing.generation_call import GenerationCall, start_at
from gatewayd.http.services import Services
from gatewayd.pipeline.billing import with_tenant
from gatewayd.pipeline.work import Work
from gatewayd.plugins.request_observers import Observers
from gatewayd.text.detokenizer import Detokenizer
from gatewayd.tracing import request_trace
from gatewayd.tracing.latency_record import LatencyRecord
from gatewayd_hooks.scheduling import Priority

_log = logging.getLogger(__name__)

_MOST_RUNNING = 4
_MOST_WAITING = 64
_MOST_UNFINISHED = 1024
"""Requests whose answers are being recorded; each holds the text of its answer."""
_HASH_BYTES = 8


class RecordedText:
    """A detokenizer that keeps the text as well.

    Args:
        detokenizer: of the answer.

    Attributes:
        pieces: text so far.
    """

    def __init__(self, detokenizer: Detokenizer) -> None:
        self._detokenizer = detokenizer
        self.pieces: list[str] = []

    @property
    def is_opening(self) -> bool:
        """See ``Detokenizer``."""
        return self._detokenizer.is_opening

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.pieces)

    def feed(self, ids: Sequence[int]) -> str:
        """See ``Detokenizer``."""
        text = self._detokenizer.feed(ids)
        self.pieces.append(text)
        return text

    def finish(self) -> str:
        """See ``Detokenizer``."""
        text = self._detokenizer.finish()
        self.pieces.append(text)
        return text


class _Recorded:
    """A request whose answer is being recorded; its choices begin in order."""

    def __init__(self, call: GenerationCall) -> None:
        self.call = call
        self.context = contextvars.copy_context()
        self.texts: list[RecordedText] = []
        self.num_choices = 1

    def adapt(self, work: Work) -> Work:
        """Keep the texts of the answers."""
        make = work.options.detokenizer
        self.num_choices = work.num_choices * len(work.requests)

        def recording() -> RecordedText:
            # Choices that start over, after the loss of an engine, replace the texts before.
            text = RecordedText(make())
            self.texts.append(text)
            return text

        options = msgspec.structs.replace(work.options, detokenizer=recording)
        return msgspec.structs.replace(work, options=options)

    @property
    def answers(self) -> list[str] | None:
        """The texts of all choices; None if an engine was lost and not all started over."""
        if len(self.texts) != self.num_choices:
            return None
        return [one.text for one in self.texts]


class ShadowCopies:
    """Copies a share of the requests to a version; called from the event loop only.

    Args:
        share: of the requests that are copied.
        figures: counts the copies.
        services: of the version.
    """

    def __init__(self, share: float, figures: ShadowFigures, services: Services) -> None:
        self._share = share
        self._figures = figures
        # Plugins that observe requests see those of clients alone.
        self._services = replace(services, observers=Observers())
        self._recorded: dict[str, _Recorded] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._running = asyncio.Semaphore(_MOST_RUNNING)

    def record(self, call: GenerationCall) -> Callable[[Work], Work] | None:
        """Return what makes a request keep its answer; None if it is not copied."""
        digest = blake2b(call.request_id.encode(), digest_size=_HASH_BYTES).digest()
        if int.from_bytes(digest) >= self._share * 2 ** (8 * _HASH_BYTES):
            return None
        if len(self._recorded) >= _MOST_UNFINISHED:
            # The oldest: its request may never have been accepted.
            del self._recorded[next(iter(self._recorded))]
        recorded = self._recorded[call.request_id] = _Recorded(call)
        return recorded.adapt

    def ended(self, record: LatencyRecord) -> None:
        """Copy a request that was answered."""
        recorded = self._recorded.pop(record.request_id, None)
        if recorded is None or record.outcome not in ("stop", "length"):
            return
        if len(self._tasks) >= _MOST_WAITING or not self._is_served:
            self._figures.dropped += 1
            return
        copying = recorded.context.run(asyncio.create_task, self._copy(recorded))
        self._tasks.add(copying)
        copying.add_done_callback(self._tasks.discard)

    @property
    def _is_served(self) -> bool:
        # A copy loads no model, for which another one would be unloaded.
        return self._services.fleet.condition == "ready"

    def close(self) -> None:
        """End the copies."""
        self._recorded.clear()
        for task in self._tasks:
            task.cancel()

    async def _copy(self, recorded: _Recorded) -> None:
        # Not the trace of the request, which has ended.
        request_trace.start_trace(f"shadow-{recorded.call.request_id}")
        async with self._running:
            if not self._is_served:
                self._figures.dropped += 1
                return
            try:
                is_greedy, texts = await self._answer(recorded)
            except GatewayError as error:
                self._figures.failed += 1
                _log.debug("a copy of %s failed: %s", recorded.call.request_id, error.code)
                return
            except Exception:  # noqa: BLE001 - a failed copy harms no request
                self._figures.failed += 1
                _log.exception("a copy of %s failed", recorded.call.request_id)
                return
        answers = recorded.answers
        if answers is None or texts is None:
            self._figures.failed += 1
            return
        if not is_greedy:
            self._figures.sampled += 1
            return
        self._figures.compared += 1
        self._figures.equal += answers == texts
        shares = [_common(*both) for both in zip(answers, texts, strict=True)]
        self._figures.common += sum(shares) / len(shares)

    async def _answer(self, recorded: _Recorded) -> tuple[bool, list[str] | None]:
        copied = _Recorded(recorded.call)
        call = msgspec.structs.replace(
            recorded.call,
            arrival=self._services.clock(),
            principal=replace(recorded.call.principal, account=None, lease=None),
            queue_timeout=None,
            disconnect=None,
        )
        is_greedy = True

        def change(work: Work) -> Work:
            nonlocal is_greedy
            is_greedy = all(one.params.temperature == 0 for one in work.requests)
            requests = [
                msgspec.structs.replace(one, priority=max(Priority), deadline=None)
                for one in work.requests
            ]
            options = msgspec.structs.replace(work.options, wakes=False)
            work = msgspec.structs.replace(work, requests=requests, options=options)
            # Its prefixes in the cache are those of its tenant alone.
            account = recorded.call.principal.account
            return copied.adapt(work if account is None else with_tenant(work, account))

        started = await start_at(self._services, call, change)
        try:
            await started.generation.finish()
        finally:
            started.generation.supersede(is_charged=False)
        return is_greedy, copied.answers


def _common(one: str, other: str) -> float:
    """The share of the longer text with which both begin."""
    most = max(len(one), len(other))
    alike = takewhile(lambda both: both[0] == both[1], zip(one, other, strict=False))
    return sum(1 for _ in alike) / most if most else 1.0
