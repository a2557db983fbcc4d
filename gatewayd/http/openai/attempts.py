"""Start of generations: at the model that a request names, or at the targets of a route in turn.

The next target of a route is tried only while the client has received nothing. What a failed target
has computed is not charged; an answer that the route's judge has rejected is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gatewayd.catalogue.catalogue import not_served
from gatewayd.catalogue.route import ModelRoute
from gatewayd.errors import GatewayError
from gatewayd.http.queue_timeout import within_queue_timeout
from gatewayd.http.server.disconnect import DisconnectSignal
from gatewayd.http.services import Services
from gatewayd.pipeline.generation import Generation
from gatewayd.pipeline.work import Work
from gatewayd.tenants.principal import Principal
from gatewayd.tracing import request_trace
from gatewayd.tracing.route_record import (
    ANSWERED,
    REJECTED,
    RouteAttempt,
    RouteRecord,
    RouteTrace,
)
from gatewayd_engine.process.messages import SamplingParams
from gatewayd_hooks.model_routing import AttemptView, Decision, RoutedRequest

if TYPE_CHECKING:
    from gatewayd.http.openai.generate import PreparedRequest

_MOST_REASON = 200
"""Maximum characters of a plugin's reason in a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationCall:
    """A validated request that is to be started.

    Attributes:
        model: name that it gives; None for the default.
        request_id: the gateway's.
        endpoint: the route of the API.
        arrival: time of its arrival.
        principal: its sender.
        prepare: prepares it for the model of the services.
        outline: describes it for model routers; called for routes only.
        queue_timeout: its own, in seconds; None for no limit.
        disconnect: signal of its client; None if the task is cancelled instead.
    """

    model: str | None
    request_id: str
    endpoint: str
    arrival: float
    principal: Principal
    prepare: Callable[[Services], Awaitable[PreparedRequest]]
    outline: Callable[[], RoutedRequest]
    queue_timeout: float | None = None
    disconnect: DisconnectSignal | None = None


class StartedGeneration(NamedTuple):
    """A generation with what its answer needs; its caller has to close it.

    Attributes:
        services: of the model that answers.
        prepared: the request, prepared for that model.
        generation: the started generation.
    """

    services: Services
    prepared: PreparedRequest
    generation: Generation


async def start_generation(services: Services, call: GenerationCall) -> StartedGeneration:
    """Start a request at its model; for a route, return once a target has output.

    Raises:
        GatewayError: it is refused, or no target of the route can answer.
    """
    route = None if call.model is None else services.catalogue.routes.get(call.model)
    if route is None:
        return await _start(services.serving(call.model), call)
    call.principal.check_use(route.name)
    return await _Attempts(services, route, call).run()


async def _start(
    services: Services, call: GenerationCall, change: Callable[[Work], Work] | None = None
) -> StartedGeneration:
    seconds = call.queue_timeout
    # Receiving the body, or an earlier attempt, has taken some of it.
    left = 0.0 if seconds is None else call.arrival + seconds - services.clock()
    prepared = await within_queue_timeout(call.prepare(services), seconds, left)
    work = Work(
        request_id=call.request_id,
        endpoint=call.endpoint,
        requests=prepared.requests,
        num_choices=prepared.num_choices,
        options=prepared.options,
        arrival=call.arrival,
        principal=call.principal,
        model=prepared.identity.model,
        queue_timeout=seconds,
    )
    if change is not None:
        work = change(work)
    return StartedGeneration(services, prepared, await services.pipeline.start(work))


class _Attempts:
    """Attempts of one request at the targets of a route."""

    def __init__(self, services: Services, route: ModelRoute, call: GenerationCall) -> None:
        self._services = services
        self._route = route
        self._call = call
        self._targets = dict(services.catalogue.reached_by(route))
        if not self._targets:
            raise not_served(route.name, services.catalogue.names)
        self._asked = call.outline()
        self._decision = self._decide()
        self._trace = RouteTrace(self._decided())
        # The latest answer that was rejected: sent if no later target can answer.
        self._rejected: StartedGeneration | None = None
        if (asks := request_trace.current()) is not None:
            asks.route = self._trace  # for the record of a refusal

    async def run(self) -> StartedGeneration:
        """Try the targets in the router's order.

        Raises:
            GatewayError: the last error, if no target can answer.
        """
        *earlier, last = self._decision.order
        try:
            for name in earlier:
                started = await self._attempt(name, is_last=False)
                if started is not None:
                    return started
            started = await self._attempt(last, is_last=True)
        except BaseException:
            if self._rejected is not None:
                self._rejected.generation.close()
            raise
        if started is None and self._rejected is not None:
            started = self._rejected
            self._trace.target = started.services.target.name
        if started is None:
            raise RuntimeError("the last target of a route has neither answered nor failed")
        return started

    async def _attempt(self, name: str, *, is_last: bool) -> StartedGeneration | None:
        """Try one target.

        Returns:
            The answer; None if the next target is to answer, or the answer that was rejected.

        Raises:
            GatewayError: the request fails.
        """
        services, is_judged = self._services.of(self._targets[name]), False
        is_judged = self._decision.is_judged and not is_last
        began, started = services.clock(), None
        try:
            change = partial(_adapt, name=services.target.name, judged=is_judged, last=is_last)
            started = await _start(services, self._call, change)
            started.generation.route = self._trace
            await self._first_output(started.generation)
        except GatewayError as error:
            self._add(name, error.failure or error.code, began, error.code)
            if not (self._rejected or self._may_go_on(error, is_last=is_last)):
                if started is not None:
                    started.generation.close()
                raise
            self._leave(started, is_charged=False)
            return None
        except BaseException:
            if started is not None:
                started.generation.close()
            raise
        if self._rejected is not None:
            self._leave(self._rejected, is_charged=True)
            self._rejected = None
        if is_judged and not self._accepts(started, name, began):
            self._rejected = started
            return None
        if not is_judged:
            self._add(name, ANSWERED, began)
        self._trace.target = services.target.name
        return started

    def _may_go_on(self, error: GatewayError, *, is_last: bool) -> bool:
        return not is_last and error.failure in self._decision.retry_on

    def _leave(self, started: StartedGeneration | None, *, is_charged: bool) -> None:
        """End an attempt for good, as another target answers."""
        if started is not None:
            started.generation.supersede(is_charged=is_charged)
        if (asks := request_trace.current()) is not None:
            asks.is_sent = False  # if the next target refuses it, that is recorded

    async def _first_output(self, generation: Generation) -> None:
        """Wait for the first output of a stream, or for a whole answer.

        Raises:
            GatewayError: it failed before.
        """
        disconnect = self._call.disconnect
        if disconnect is not None:
            disconnect.add_listener(generation.abandon)
        try:
            if not generation.work.options.wakes:
                await generation.finish()
                generation.wake()  # its reader finds it ended
            elif not generation.output.is_awake:
                await generation.output.waiter()
            if generation.error is not None:
                raise generation.error
        finally:
            if disconnect is not None:
                disconnect.remove_listener(generation.abandon)

    def _accepts(self, started: StartedGeneration, name: str, began: float) -> bool:
        generation = started.generation
        if generation.is_abandoned:
            return True  # there is no client for a better answer
        n = generation.work.num_choices
        for at in range(0, len(generation.choices), n):
            first, *others = generation.choices[at : at + n]
            verdict = self._route.router.judge(
                AttemptView(
                    target=name,
                    text=first.unread_text,
                    num_tokens=first.completion_tokens,
                    finish_reason=first.finish_reason or "stop",
                    mean_logprob=first.mean_logprob,
                    others=[choice.unread_text for choice in others],
                    request=self._asked,
                )
            )
            if not verdict.is_accepted:
                break
        outcome = ANSWERED if verdict.is_accepted else REJECTED
        self._add(name, outcome, began, verdict.reason, verdict.score, generation)
        return verdict.is_accepted

    def _decide(self) -> Decision:
        candidates = self._route.candidates(list(self._targets.items()))
        return self._route.router.route(self._asked, candidates)

    def _decided(self) -> RouteRecord:
        decision = self._decision
        return RouteRecord(
            route=self._route.name,
            strategy=self._route.router.name,
            reason=decision.reason[:_MOST_REASON],
            order=tuple(decision.order),
            scores={name: decision.scores.get(name) for name in self._targets},
        )

    def _add(
        self,
        name: str,
        outcome: str,
        began: float,
        detail: str = "",
        score: float | None = None,
        judged: Generation | None = None,
    ) -> None:
        self._route.metrics.attempted(self._route.name, name, outcome)
        is_rejected = outcome == REJECTED and judged is not None
        self._trace.attempts.append(
            RouteAttempt(
                target=name,
                outcome=outcome,
                seconds=self._services.clock() - began,
                detail=detail[:_MOST_REASON],
                score=score,
                prompt_tokens=judged.prompt_tokens if is_rejected and judged else 0,
                completion_tokens=judged.completion_tokens if is_rejected and judged else 0,
            )
        )


def _adapt(work: Work, *, name: str, judged: bool, last: bool) -> Work:
    """Adapt a request to an attempt: usage of the target, failures, what a judge needs."""
    requests = [msgspec.structs.replace(one, has_other_target=not last) for one in work.requests]
    options = work.options
    if judged:
        requests = [msgspec.structs.replace(one, params=_scored(one.params)) for one in requests]
        options = msgspec.structs.replace(options, wakes=False)
    return msgspec.structs.replace(work, requests=requests, options=options, charged_as=name)


def _scored(params: SamplingParams) -> SamplingParams:
    if params.logprobs is not None:
        return params
    return msgspec.structs.replace(params, logprobs=0)
