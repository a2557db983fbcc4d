"""A request's life between validation and the last byte, free of HTTP.

Submit, wait, take, and one account at the end whatever the end was: answered, failed, or left by
its client.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from gatewayd.engines.api import Fleet, Handle
from gatewayd.engines.prompt_usage import PromptUsage
from gatewayd.errors import GatewayError, QueueFull
from gatewayd.fairness.queue_capacity import QueueCapacity
from gatewayd.metrics.registry import Metrics
from gatewayd.pipeline.accounting import account, first_token, ledger_of, reason
from gatewayd.pipeline.billing import asked_of, lefts_of, owned, spent_of
from gatewayd.pipeline.choice import Choice
from gatewayd.pipeline.live_requests import LiveRequests
from gatewayd.pipeline.progress import ReservationProgress
from gatewayd.pipeline.refusals import CLIENT_GONE, mistake_behind, why_of
from gatewayd.pipeline.settlement import charged, when_taken, withdraw
from gatewayd.pipeline.timing import RequestTiming, queue_timeout, timing_of
from gatewayd.pipeline.work import Work
from gatewayd.plugins.request_observers import Observers, ignore_event, notify_observer
from gatewayd.tenants.account import Ticket
from gatewayd.tenants.billing.costs import Spent
from gatewayd.tracing import request_trace
from gatewayd.tracing.causes import ADMISSION
from gatewayd.tracing.time_ledger import TimeLedger, Why
from gatewayd_hooks.events import RequestAdmitted, RequestFinished


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """What every request shares.

    Attributes:
        fleet: where requests go.
        metrics: where they are counted.
        observers: who is told.
        live: the requests that are at the engines.
        clock: seconds; monotonic.
    """

    fleet: Fleet
    metrics: Metrics
    observers: Observers = field(default_factory=Observers)
    live: LiveRequests[Generation] = field(default_factory=LiveRequests)
    clock: Callable[[], float] = time.monotonic

    @cached_property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Where it runs; asked once, because CPython 3.11 makes a system call to find it."""
        return asyncio.get_running_loop()

    async def start(self, work: Work) -> Generation:
        """Send a request to the engines; waits for nothing but the commit of a reservation.

        The caller calls ``close`` on what it gets, whatever happens.

        Raises:
            PermissionDenied: its key is not for this model.
            Unauthorized: its key is good no more since the request came.
            RateLimited: a limit of its tenant's is reached.
            InsufficientQuota: its tenant's budget has too little left.
            QueueFull: there is no room.
            EngineUnavailable: there is no engine.
        """
        principal, ticket = work.principal, None
        if (asks := request_trace.current()) is not None:
            asks.asked, asks.is_sent = work.outline, False
        principal.check_use(work.model)
        if principal.account is not None:
            with request_trace.TimedSpan(ADMISSION):
                ticket = await principal.account.reserve(asked_of(work))
            work = owned(work, principal.account)
        generation = Generation(self, work, ticket)
        try:
            principal.check_use(work.model)  # it may have waited
            generation.submit()
        except BaseException as error:
            if isinstance(error, QueueFull):
                self.metrics.rejected(by_tokens=error.by_tokens)
            generation.close()
            raise
        return generation


class Generation:
    """A request at the engines.

    Attributes:
        work: what was asked.
        choices: in the answer's order.
        prompt_tokens: of all prompts.
        error: what failed, or None.
        is_abandoned: whether the client has gone.
        is_awake: whether something came since whoever writes the answer last set it to false.
        progress: marked as it comes; None where nothing is reserved.
    """

    __slots__ = (
        "_expiry",
        "_handed",
        "_handles",
        "_is_admitted",
        "_is_closed",
        "_loop",
        "_pipeline",
        "_submitted",
        "_ticket",
        "_trail",
        "_waiter",
        "choices",
        "clock",
        "error",
        "is_abandoned",
        "is_awake",
        "progress",
        "prompt_tokens",
        "work",
    )

    def __init__(self, pipeline: Pipeline, work: Work, ticket: Ticket | None = None) -> None:
        self._pipeline = pipeline
        self.work = work
        self._ticket = ticket
        self.progress = (
            ReservationProgress(ticket) if ticket is not None and ticket.is_marked else None
        )
        self.prompt_tokens = sum([len(request.prompt) for request in work.requests])
        self.clock = pipeline.clock
        self.error: GatewayError | None = None
        self.is_abandoned = False
        self._handles: list[Handle] = []
        self._expiry: asyncio.TimerHandle | None = None
        self._loop = pipeline.loop
        self._trail = request_trace.current()
        self._waiter: asyncio.Future[None] | None = None
        self.is_awake = False
        self._is_admitted = False
        self._is_closed = False
        self.choices = [
            Choice(prompt * work.num_choices + at, prompt, work.options, self)
            for prompt in range(len(work.requests))
            for at in range(work.num_choices)
        ]

    def submit(self) -> None:
        """Send all prompts, or none."""
        fleet, n = self._pipeline.fleet, self.work.num_choices
        try:
            for at, request in enumerate(self.work.requests):
                sinks = self.choices[at * n : (at + 1) * n]
                self._handles.append(fleet.submit(request, sinks))
        except BaseException:
            self._cancel()
            raise
        self._is_admitted = True
        if self._trail is not None:
            self._trail.is_sent = True
        self._submitted = self.clock()
        self._pipeline.live.add(self)
        if (seconds := self.work.queue_timeout) is not None:
            left = max(0.0, self.work.arrival + seconds - self._submitted)
            self._expiry = self._loop.call_later(left, self._expire, seconds)
        if self.work.principal.lease is not None:
            self.work.principal.lease.add(self._revoke)
        tell = self._pipeline.observers.admitted
        if tell is not ignore_event:
            event = RequestAdmitted(
                request_id=self.work.request_id,
                tenant=self.work.requests[0].tenant,
                endpoint=self.work.endpoint,
                prompt_tokens=self.prompt_tokens,
                priority=self.work.requests[0].priority,
            )
            notify_observer(tell, event)
        self._handed = self._submitted if tell is ignore_event else self.clock()

    def _expire(self, seconds: float) -> None:
        """It has waited for as long as it may, if it does."""
        if any([one.queue_seconds is not None or one.first is not None for one in self.choices]):
            return
        timelines = [timeline for handle in self._handles for timeline in handle.timelines]
        self.fail(queue_timeout(seconds, timelines))

    def _revoke(self) -> None:
        """Its key is good no more."""
        lease = self.work.principal.lease
        if lease is not None:
            self.fail(lease.why())

    # For the choices.

    def wake(self) -> None:
        """Something is there to take."""
        if not self.is_awake:
            self.is_awake = True
            waiter = self._waiter
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    def gap_observer(self, prompt_index: int) -> Callable[[float], None]:
        """Who is told the seconds between chunks of a prompt's choice that has got its first."""
        return self._pipeline.metrics.gap_observer(self._handles[prompt_index].replica)

    def stop_choice(self, index: int) -> None:
        """Give the pages of a choice back that its stop string ended."""
        n = self.work.num_choices
        prompt, at = divmod(index, n)
        if prompt < len(self._handles):
            self._handles[prompt].cancel(at)

    def fail(self, error: GatewayError) -> None:
        """End the request with an error; the first one counts."""
        if self.error is None and not self._is_closed:
            self.error = error
            self._cancel()
            self.wake()

    # For operators.

    @property
    def answered_id(self) -> str:
        """The ``x-request-id`` that its client is told."""
        return self.work.request_id if self._trail is None else self._trail.answered_id

    @property
    def arrival(self) -> float:
        """When it came, by the clock."""
        return min(self.work.arrival, self._trail.arrival if self._trail else self.work.arrival)

    @property
    def handles(self) -> Sequence[Handle]:
        """Of its prompts, in their order."""
        return self._handles

    # For the answer.

    def room(self, queue: QueueCapacity) -> QueueCapacity:
        """What may come yet: of the tenant's limits, else of the queue."""
        return queue if self._ticket is None else self._ticket.remaining_capacity(queue)

    @property
    def is_done(self) -> bool:
        """Whether every choice has ended."""
        for choice in self.choices:  # noqa: SIM110 - a third of the time of all()
            if not choice.is_done:
                return False
        return True

    @property
    def completion_tokens(self) -> int:
        """Of all choices."""
        return sum([choice.completion_tokens for choice in self.choices])

    @property
    def timing(self) -> RequestTiming:
        """Where its time went so far."""
        return timing_of(self.choices, self.work.arrival, self._submitted)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens found in the prefix cache, each prompt counted once.

        The first choice of a prompt says what was there before the request.
        """
        firsts = self.choices[:: self.work.num_choices]
        return sum([choice.cached_tokens for choice in firsts])

    async def wait(self) -> None:
        """Wait until something came since the last time."""
        if not self.is_awake:
            await self.waiter()
        self.is_awake = False

    def waiter(self) -> asyncio.Future[None]:
        """What ``wake`` completes; one waits at a time, and only while ``is_awake`` is false."""
        self._waiter = self._loop.create_future()
        return self._waiter

    async def finish(self) -> None:
        """Wait until it has ended.

        Raises:
            GatewayError: it failed.
        """
        while not (self.is_abandoned or self.error or self.is_done):
            await self.wait()
        if self.error is not None:
            raise self.error

    def abandon(self) -> None:
        """The client has gone: stop the engines. Nothing happens after the end."""
        if not self._is_closed:
            self.is_abandoned = True
            self._cancel()
            self.wake()

    def close(self) -> None:
        """Account for the request, once; stop what still runs.

        Called while an exception is on its way, it knows whether the client left or we failed.
        """
        if self._is_closed:
            return
        if not (self.is_done or self.error):
            mistake = None if self.is_abandoned else mistake_behind(sys.exception())
            self.error, self.is_abandoned = mistake, mistake is None
        self._cancel()
        if self._expiry is not None:
            self._expiry.cancel()
        self._is_closed = True
        if self.work.principal.lease is not None:
            self.work.principal.lease.discard(self._revoke)
        if self._is_admitted:
            self._pipeline.live.remove(self)
            self._account()
        elif self._ticket is not None:
            self._withdraw(self._ticket)
        # Choices and handles lead back here: without them no collector is needed.
        self.choices = []
        self._handles = []

    @property
    def outcome(self) -> str:
        """``stop``, ``length``, ``abort`` or ``error``."""
        if self.error is not None:
            return "error"
        if self.is_abandoned or not self.is_done:
            return "abort"
        return reason(self.choices)

    @property
    def ledger(self) -> TimeLedger:
        """Where its time went until now, for one that runs."""
        return self._ledger("running", self.clock())

    def _ledger(self, outcome: str, now: float) -> TimeLedger:
        return ledger_of(
            self.work,
            self.choices,
            [timeline for handle in self._handles for timeline in handle.timelines],
            self._trail,
            outcome=outcome,
            why=self._why(outcome),
            submitted=self._submitted,
            handed=self._handed,
            end=now,
        )

    def _why(self, outcome: str) -> Why | None:
        if self.error is not None:
            return why_of(self.error)
        return CLIENT_GONE if outcome == "abort" else None

    def _cancel(self) -> None:
        for handle in self._handles:
            handle.cancel()

    def _withdraw(self, ticket: Ticket) -> None:
        """Not all prompts were taken."""
        work, handles = self.work, self._handles
        total_ms = round(1000 * (self.clock() - work.arrival))
        nothing = Spent(self.outcome, 0, 0, 0, total_ms=total_ms)
        lefts = lefts_of(self.choices, work, len(handles))
        withdraw(ticket, nothing, lefts, handles, self._loop.call_later)

    def _account(self) -> None:
        work, outcome, now = self.work, self.outcome, self.clock()
        ticket, spent, lefts = self._ticket, None, None
        if ticket is not None:
            spent = spent_of(self.choices, self.cached_tokens, work, outcome, now)
            if outcome in ("error", "abort"):
                lefts = lefts_of(self.choices, work, len(self._handles))
            else:
                # Whoever has its answer may send the next request, also while the engine does not
                # know yet that a stop string has ended this one.
                ticket.release(spent.tokens)
        n = work.num_choices
        for at, (request, handle) in enumerate(zip(work.requests, self._handles, strict=True)):
            choices = self.choices[at * n : (at + 1) * n]
            ended = account(request, choices, outcome=outcome, arrival=work.arrival, end=now)
            self._pipeline.metrics.ended(handle.replica, ended)
        ledger = self._ledger(outcome, now)
        explained = self._pipeline.metrics.explained

        def settle(all_taken: Sequence[PromptUsage]) -> None:
            seconds = sum([taken.seconds for taken in all_taken])
            if ticket is not None and spent is not None:
                told = spent._replace(engine_seconds=seconds)
                ticket.settle(told if lefts is None else charged(told, lefts, all_taken))
            explained(msgspec.structs.replace(ledger, engine_seconds=seconds))

        when_taken(self._handles, settle, self._loop.call_later)
        tell = self._pipeline.observers.finished
        if tell is not ignore_event:
            first = first_token(self.choices)
            event = RequestFinished(
                request_id=work.request_id,
                tenant=work.requests[0].tenant,
                outcome=outcome,
                prompt_tokens=self.prompt_tokens,
                cached_tokens=self.cached_tokens,
                completion_tokens=self.completion_tokens,
                ttft_seconds=None if first is None else first - work.arrival,
                seconds=now - work.arrival,
            )
            notify_observer(tell, event)
