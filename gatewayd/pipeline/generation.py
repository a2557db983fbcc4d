"""Request lifecycle between validation and the last byte, independent of HTTP.

A request is submitted, its output is awaited and popped, and it is accounted for once at the end,
whether it was answered, failed, or aborted because its client disconnected.
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
from gatewayd.pipeline.accounting import (
    ChoiceSums,
    account,
    build_latency_record,
    finished_event,
    first_token,
    reason,
    sums_of,
)
from gatewayd.pipeline.billing import aborted_prompts, delivered_usage, requested_cost, with_tenant
from gatewayd.pipeline.choice import Choice
from gatewayd.pipeline.live_requests import LiveRequests
from gatewayd.pipeline.output_signal import OutputSignal
from gatewayd.pipeline.progress import ReservationProgress
from gatewayd.pipeline.refusals import CLIENT_GONE, reason_for, server_error_behind
from gatewayd.pipeline.relayed_choice import RelayedChoice
from gatewayd.pipeline.settlement import charge_aborted, settle_refused, when_usage_known
from gatewayd.pipeline.timing import RequestTiming, queue_timeout, timing_of
from gatewayd.pipeline.work import Work
from gatewayd.plugins.request_observers import Observers, ignore_event, notify_observer
from gatewayd.tenants.account import Ticket
from gatewayd.tenants.billing.costs import Spent
from gatewayd.tracing import request_trace
from gatewayd.tracing.causes import ADMISSION
from gatewayd.tracing.latency_record import EndReason, LatencyRecord
from gatewayd.tracing.route_record import RouteTrace
from gatewayd_hooks.events import RequestAdmitted


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """Starts generations, with the state that all requests share.

    Attributes:
        fleet: engines that run the requests.
        metrics: counts the requests.
        observers: plugins notified of admitted and finished requests.
        live: requests in flight at the engines.
        clock: seconds; monotonic.
    """

    fleet: Fleet
    metrics: Metrics
    observers: Observers = field(default_factory=Observers)
    live: LiveRequests[Generation] = field(default_factory=LiveRequests)
    clock: Callable[[], float] = time.monotonic

    @cached_property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Event loop; looked up once, because CPython 3.11 makes a system call for each lookup."""
        return asyncio.get_running_loop()

    async def start(self, work: Work) -> Generation:
        """Submit a request to the engines; waits only for the commit of a reservation.

        The caller must call ``close`` on the returned generation in every case.

        Raises:
            PermissionDenied: its key may not use this model.
            Unauthorized: its key was revoked or expired since the request arrived.
            RateLimited: a rate limit of its tenant is reached.
            InsufficientQuota: the remaining budget of its tenant is too small.
            QueueFull: the queue is full.
            EngineUnavailable: no engine is available.
        """
        principal, ticket = work.principal, None
        # For the record of a refusal. A request may start several generations, one after another.
        if (asks := request_trace.current()) is not None:
            asks.asked, asks.is_sent = work.outline, False
            asks.model = self.metrics.model_name
        principal.check_use(work.model)
        if principal.account is not None:
            with request_trace.TimedSpan(ADMISSION):
                ticket = await principal.account.reserve(requested_cost(work))
            work = with_tenant(work, principal.account)
        # From here on `close` settles the reservation, whatever happens.
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
    """A request in flight at the engines.

    Attributes:
        work: the validated request.
        choices: in the order of the response.
        prompt_tokens: of all prompts.
        error: the first failure, or None.
        is_abandoned: whether the client has disconnected.
        output: wakes the writer of the response.
        wake: same as ``output.wake``, for the choices.
        progress: of its budget reservation; None without a marked one.
        route: decision of the route that started it; None without a route.
    """

    __slots__ = (
        "_expiry",
        "_handles",
        "_is_admitted",
        "_is_closed",
        "_is_free",
        "_is_superseded",
        "_loop",
        "_notified",
        "_pipeline",
        "_submitted",
        "_ticket",
        "_trace",
        "choices",
        "clock",
        "error",
        "is_abandoned",
        "output",
        "progress",
        "prompt_tokens",
        "route",
        "wake",
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
        self._trace = request_trace.current()
        self.output = OutputSignal(pipeline.loop)
        self.wake = self.output.wake
        self._is_admitted = False
        self._is_closed = self._is_superseded = self._is_free = False
        self.route: RouteTrace | None = None
        make = Choice if work.requests[0].relay is None else RelayedChoice
        self.choices = [
            make(prompt * work.num_choices + at, prompt, work.options, self)
            for prompt in range(len(work.requests))
            for at in range(work.num_choices)
        ]

    def submit(self) -> None:
        """Submit all prompts, or none."""
        fleet, n = self._pipeline.fleet, self.work.num_choices
        try:
            for at, request in enumerate(self.work.requests):
                sinks = self.choices[at * n : (at + 1) * n]
                self._handles.append(fleet.submit(request, sinks))
        except BaseException:
            self._cancel()
            raise
        # From here on `close` accounts for the request; until here it settles a refusal.
        self._is_admitted = True
        if self._trace is not None:
            self._trace.is_sent = True
        self._submitted = self.clock()
        self._pipeline.live.add(self)
        if (seconds := self.work.queue_timeout) is not None:
            # The time of the preparation counts, too.
            left = max(0.0, self.work.arrival + seconds - self._submitted)
            self._expiry = self._loop.call_later(left, self._expire, seconds)
        if self.work.principal.lease is not None:
            self.work.principal.lease.add(self._revoke)
        notify = self._pipeline.observers.admitted
        if notify is not ignore_event:
            event = RequestAdmitted(
                request_id=self.work.request_id,
                tenant=self.work.requests[0].tenant,
                endpoint=self.work.endpoint,
                prompt_tokens=self.prompt_tokens,
                priority=self.work.requests[0].priority,
            )
            notify_observer(notify, event)
        self._notified = self._submitted if notify is ignore_event else self.clock()

    def _expire(self, seconds: float) -> None:
        """Fail the request with a queue timeout unless an engine has admitted it."""
        if any([one.queue_seconds is not None or one.first is not None for one in self.choices]):
            return
        timelines = [timeline for handle in self._handles for timeline in handle.timelines]
        self.fail(queue_timeout(seconds, timelines))

    def _revoke(self) -> None:
        """Fail the request because its API key was revoked or has expired."""
        lease = self.work.principal.lease
        if lease is not None:
            self.fail(lease.why())

    # ChoiceOwner: callbacks from the choices.

    def gap_observer(self, prompt_index: int) -> Callable[[float], None]:
        """Return the observer of seconds between chunks of a prompt's choices."""
        return self._pipeline.metrics.gap_observer(self._handles[prompt_index].replica)

    def stop_choice(self, index: int) -> None:
        """Cancel the sequence of a choice that ended by a stop string, to free its KV pages."""
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

    def count_prompt(self, prompt_index: int, tokens: int) -> None:
        """Correct the number of tokens of a prompt, which only an upstream knows."""
        requests = list(self.work.requests)
        requests[prompt_index] = msgspec.structs.replace(
            requests[prompt_index], prompt=range(tokens)
        )
        # Everything that counts prompt tokens later reads them from the requests.
        self.work = msgspec.structs.replace(self.work, requests=requests)
        self.prompt_tokens = sum([len(request.prompt) for request in requests])

    # For operators.

    @property
    def answered_id(self) -> str:
        """The ``x-request-id`` of its response."""
        return self.work.request_id if self._trace is None else self._trace.answered_id

    @property
    def arrival(self) -> float:
        """Time of arrival, by the pipeline's clock."""
        return min(self.work.arrival, self._trace.arrival if self._trace else self.work.arrival)

    @property
    def handles(self) -> Sequence[Handle]:
        """Engine handles of its prompts, in order."""
        return self._handles

    # For the writer of the response.

    def remaining_capacity(self, queue: QueueCapacity) -> QueueCapacity:
        """Return the remaining capacity of the tenant's limits if it has any, else of the queue."""
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
        """Generated tokens of all choices."""
        return sum([choice.completion_tokens for choice in self.choices])

    @property
    def timing(self) -> RequestTiming:
        """Timing breakdown so far."""
        return timing_of(self.choices, self.work.arrival, self._submitted)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens found in the prefix cache, each prompt counted once.

        The first choice of a prompt reports what was cached before the request.
        """
        firsts = self.choices[:: self.work.num_choices]
        return sum([choice.cached_tokens for choice in firsts])

    async def finish(self) -> None:
        """Wait until the request has ended.

        Raises:
            GatewayError: the request failed.
        """
        while not (self.is_abandoned or self.error or self.is_done):
            if not self.output.is_awake:
                await self.output.waiter()
            self.output.is_awake = False
        if self.error is not None:
            raise self.error

    def abandon(self) -> None:
        """Cancel the request because its client disconnected; no effect after the end."""
        if not self._is_closed:
            self.is_abandoned = True
            self._cancel()
            self.wake()

    def close(self) -> None:
        """Account for the request, once, and cancel sequences that still run.

        If called while an exception propagates, the exception decides between abort and error.
        """
        if self._is_closed:
            return
        if not (self.is_done or self.error):
            mistake = None if self.is_abandoned else server_error_behind(sys.exception())
            self.error, self.is_abandoned = mistake, mistake is None
        # Before the accounting, which waits for the final usage of all sequences.
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
            self._settle_refused(self._ticket)
        # Choices and handles refer back here: break the cycles, so no garbage collection is needed.
        self.choices = []
        self._handles = []
        self.output.close()

    def supersede(self, *, is_charged: bool) -> None:
        """Close it because another target answers the request, in whose record it is an attempt.

        Args:
            is_charged: whether its usage is charged.
        """
        self._is_superseded, self._is_free = True, not is_charged
        self.close()

    @property
    def outcome(self) -> str:
        """``stop``, ``length``, ``abort`` or ``error``."""
        if self.error is not None:
            return "error"
        if self.is_abandoned or not self.is_done:
            return "abort"
        return reason(self.choices)

    @property
    def latency_record(self) -> LatencyRecord:
        """Latency record of the running request up to now."""
        return self._latency_record("running", self.clock(), sums_of(self.choices))

    def _latency_record(self, outcome: str, now: float, sums: ChoiceSums) -> LatencyRecord:
        return build_latency_record(
            self.work,
            self.choices,
            sums,
            [timeline for handle in self._handles for timeline in handle.timelines],
            self._trace,
            outcome=outcome,
            why=self._why(outcome),
            submitted=self._submitted,
            notified=self._notified,
            end=now,
            route=None if self.route is None else self.route.record,
            model=self._pipeline.metrics.model_name,
        )

    def _why(self, outcome: str) -> EndReason | None:
        if self.error is not None:
            return reason_for(self.error)
        return CLIENT_GONE if outcome == "abort" else None

    def _cancel(self) -> None:
        for handle in self._handles:
            handle.cancel()

    def _settle_refused(self, ticket: Ticket) -> None:
        """Settle the reservation of a request of which not all prompts were accepted."""
        work, handles = self.work, self._handles
        total_ms = round(1000 * (self.clock() - work.arrival))
        nothing = Spent(self.outcome, 0, 0, 0, total_ms=total_ms)
        aborted = aborted_prompts(self.choices, work, len(handles))
        settle_refused(ticket, nothing, aborted, handles, self._loop.call_later)

    def _account(self) -> None:
        work, outcome, now = self.work, self.outcome, self.clock()
        ticket, spent, aborted = self._ticket, None, None
        if ticket is not None and self._is_free:
            ticket.cancel()
            ticket = None
        if ticket is not None:
            spent = delivered_usage(self.choices, self.cached_tokens, work, outcome, now)
            if outcome in ("error", "abort"):
                # Limits are held until the engines have reported what they computed, see ADR 0048.
                aborted = aborted_prompts(self.choices, work, len(self._handles))
            else:
                # A client that has its answer may send the next request, even while the engine has
                # not yet processed the cancellation by a stop string.
                ticket.release(spent.tokens)
        n, whole = work.num_choices, sums_of(self.choices)
        is_single = len(work.requests) == 1
        for at, (request, handle) in enumerate(zip(work.requests, self._handles, strict=True)):
            choices = self.choices[at * n : (at + 1) * n]
            sums = whole if is_single else sums_of(choices)
            ended = account(request, choices, sums, outcome=outcome, arrival=work.arrival, end=now)
            self._pipeline.metrics.ended(handle.replica, ended)
        # Built before the usage is known: until then `close` has dropped the choices.
        record = None if self._is_superseded else self._latency_record(outcome, now, whole)
        record_latency = self._pipeline.metrics.record_latency

        def settle(usages: Sequence[PromptUsage]) -> None:
            seconds = sum([taken.seconds for taken in usages])
            if ticket is not None and spent is not None:
                usage = spent._replace(engine_seconds=seconds)
                ticket.settle(usage if aborted is None else charge_aborted(usage, aborted, usages))
            if record is not None:
                record_latency(msgspec.structs.replace(record, engine_seconds=seconds))

        when_usage_known(self._handles, settle, self._loop.call_later)
        notify = self._pipeline.observers.finished
        if notify is not ignore_event:
            tokens = (self.prompt_tokens, self.cached_tokens, self.completion_tokens)
            event = finished_event(work, outcome, tokens, first_token(self.choices), now)
            notify_observer(notify, event)
