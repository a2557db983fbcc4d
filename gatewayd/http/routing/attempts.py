"""Start of generations: at the model that a request names, or at the targets of a route in turn.

The next target of a route is tried only while the client has received nothing. What a failed target
has computed is not charged; an answer that the route's judge has rejected is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from gatewayd.catalogue.catalogue import no_target
from gatewayd.catalogue.route import ModelRoute
from gatewayd.engines.api import EngineRequest, Relay
from gatewayd.errors import GatewayError, InvalidRequest
from gatewayd.http.routing.generation_call import GenerationCall, StartedGeneration, start_at
from gatewayd.http.services import Services
from gatewayd.pipeline.generation import Generation
from gatewayd.pipeline.work import Work
from gatewayd.tracing import request_trace
from gatewayd.tracing.route_record import (
    ABANDONED,
    ANSWERED,
    REJECTED,
    SAMPLED,
    RouteAttempt,
    RouteRecord,
    RouteTrace,
)
from gatewayd_hooks.targets.model_routing import (
    UNSUPPORTED,
    AttemptVerdict,
    AttemptView,
    Decision,
)

_TEMPERATURE = 0.7
"""Temperature of sampled answers to a request for the likeliest one."""
_MOST_REASON = 200
"""Maximum characters of a plugin's reason in a record."""


async def start_generation(services: Services, call: GenerationCall) -> StartedGeneration:
    """Start a request at its model; for a route, return once a target has output.

    Raises:
        GatewayError: it is refused, or no target of the route can answer.
    """
    route = services.catalogue.route_of(call.model)
    if route is None or call.model is None:
        return await start_at(services.serving(call.model), call)
    call.principal.check_use(call.model)
    return await _Attempts(services, route, call).run()


class _Attempts:
    """Attempts of one request at the targets of a route."""

    def __init__(self, services: Services, route: ModelRoute, call: GenerationCall) -> None:
        self._services = services
        self._route = route
        self._call = call
        self._targets = dict(services.catalogue.reached_by(route))
        if not self._targets:
            raise no_target(route.name)
        self._asked = call.outline()
        self._decision = self._decide()
        self._trace = RouteTrace(self._decided())
        # The latest answer that was rejected: sent if no later target can answer.
        self._rejected: StartedGeneration | None = None
        self._failed: GatewayError | None = None  # at a target that could have answered
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
            self._add(self._trace.target, ANSWERED, self._services.clock(), "no other could answer")
        if started is None:
            raise RuntimeError("the last target of a route has neither answered nor failed")
        return started

    async def _attempt(
        self, name: str, *, is_last: bool, is_scored: bool = True
    ) -> StartedGeneration | None:
        """Try one target.

        Args:
            name: of the target.
            is_last: whether there is no other target after it.
            is_scored: whether log-probabilities are requested for the judge.

        Returns:
            The answer; None if the next target is to answer, or the answer that was rejected.

        Raises:
            GatewayError: the request fails.
        """
        services = self._services.of(self._targets[name])
        is_judged = self._decision.is_judged and not is_last
        began, started = services.clock(), None
        try:
            change = partial(
                _adapt,
                name=self._charged(services),
                judged=is_judged,
                scored=is_judged and is_scored,
                last=is_last,
            )
            started = await start_at(services, self._call, self._kept(name, change))
            started.generation.route = self._trace
            await self._first_output(started.generation)
        except GatewayError as error:
            if is_judged and is_scored and self._refuses_scores(error):
                if started is not None:
                    started.generation.supersede(is_charged=False)
                return await self._attempt(name, is_last=is_last, is_scored=False)
            self._add(name, error.failure or error.code, began, error.code)
            if not (self._rejected or self._may_go_on(error, is_last=is_last)):
                if started is not None:
                    started.generation.close()
                if error.failure == UNSUPPORTED and self._failed is not None:
                    # That target is worth a retry, and this one is not.
                    raise self._failed from error
                raise
            if error.failure != UNSUPPORTED:
                self._failed = error
            if started is not None:
                started.generation.supersede(is_charged=False)
            if (asks := request_trace.current()) is not None:
                asks.is_sent = False  # if the next target refuses it, that is recorded
            return None
        except BaseException:
            if started is not None:
                started.generation.close()
            raise
        if self._rejected is not None:
            self._rejected.generation.supersede(is_charged=True)
            self._rejected = None
        if not is_judged:
            self._add(name, ABANDONED if started.generation.is_abandoned else ANSWERED, began)
        elif not await self._accepts(started, name, began):
            self._rejected = started
            return None
        self._trace.target = services.target.name
        return started

    def _charged(self, services: Services) -> str:
        """The name by which an answer is charged; of versions the one that was requested."""
        requested = self._call.model
        return requested if self._route.versions and requested else services.target.name

    def _kept(self, name: str, change: Callable[[Work], Work]) -> Callable[[Work], Work]:
        """Adapt a request whose answer is compared with that of another version."""
        route = self._route
        if route.shadow is None or name != route.name:
            return change
        keep = route.shadow(self._call)
        return change if keep is None else lambda work: keep(change(work))

    def _may_go_on(self, error: GatewayError, *, is_last: bool) -> bool:
        return not is_last and error.failure in self._decision.retry_on

    def _refuses_scores(self, error: GatewayError) -> bool:
        """Whether a target refuses the log-probabilities that the client has not requested."""
        return (
            isinstance(error, InvalidRequest)
            and error.param == "logprobs"
            and not self._asked.needs_logprobs
        )

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

    async def _accepts(self, started: StartedGeneration, name: str, began: float) -> bool:
        try:
            return await self._judge(started, name, began)
        except BaseException:
            started.generation.close()
            raise

    async def _judge(self, started: StartedGeneration, name: str, began: float) -> bool:
        generation = started.generation
        if generation.is_abandoned:
            return True  # there is no client for a better answer
        n = generation.work.num_choices
        texts = [
            [choice.unread_text for choice in generation.choices[n * at : n * (at + 1)]]
            for at in range(len(generation.work.requests))
        ]
        verdict = self._verdict(generation, name, texts)
        if verdict.is_accepted and n == 1 and self._decision.samples:
            sampled = await self._sample(started.services, name, len(texts))
            both = [text + more for text, more in zip(texts, sampled, strict=True)]
            verdict = self._verdict(generation, name, both)
        outcome = ANSWERED if verdict.is_accepted else REJECTED
        unsent = None if verdict.is_accepted else generation
        self._add(name, outcome, began, verdict.reason, verdict.score, unsent)
        return verdict.is_accepted

    def _verdict(
        self, generation: Generation, name: str, texts: Sequence[Sequence[str]]
    ) -> AttemptVerdict:
        """Return the verdict about the first answer to each prompt; the first rejection counts."""
        verdict = AttemptVerdict(is_accepted=True, reason="there is no answer")
        for first, (text, *others) in zip(
            generation.choices[:: generation.work.num_choices], texts, strict=True
        ):
            verdict = self._route.router.judge(
                AttemptView(
                    target=name,
                    text=text,
                    num_tokens=first.completion_tokens,
                    finish_reason=first.finish_reason or "stop",
                    mean_logprob=first.mean_logprob,
                    others=others,
                    request=self._asked,
                )
            )
            if not verdict.is_accepted:
                break
        return verdict

    async def _sample(self, services: Services, name: str, prompts: int) -> list[list[str]]:
        """Return further answers to each prompt; none if the target cannot give them now."""
        began, started, samples = services.clock(), None, self._decision.samples
        is_complete = False
        try:
            change = partial(_sampled, name=services.target.name, samples=samples)
            started = await start_at(services, self._call, change)
            await self._first_output(started.generation)
            # Before they are dropped with the generation.
            texts = [choice.unread_text for choice in started.generation.choices]
            self._add(name, SAMPLED, began, unsent=started.generation)
            is_complete = True
        except GatewayError as error:
            self._add(name, error.failure or error.code, began, error.code)
            return [[]] * prompts
        finally:
            if started is not None:
                started.generation.supersede(is_charged=is_complete)
        return [texts[at : at + samples] for at in range(0, len(texts), samples)]

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
        unsent: Generation | None = None,
    ) -> None:
        self._route.metrics.attempted(self._route.name, name, outcome)
        self._trace.attempts.append(
            RouteAttempt(
                target=name,
                outcome=outcome,
                seconds=self._services.clock() - began,
                detail=detail[:_MOST_REASON],
                score=score,
                prompt_tokens=0 if unsent is None else unsent.prompt_tokens,
                completion_tokens=0 if unsent is None else unsent.completion_tokens,
            )
        )


def _adapt(work: Work, *, name: str, judged: bool, scored: bool, last: bool) -> Work:
    """Adapt a request to an attempt: usage of the target, failures, what a judge needs."""
    requests = [msgspec.structs.replace(one, has_other_target=not last) for one in work.requests]
    options = work.options
    if scored:
        requests = [_scored(one) for one in requests]
    if judged:
        options = msgspec.structs.replace(options, wakes=False)
    return msgspec.structs.replace(work, requests=requests, options=options, charged_as=name)


def _scored(request: EngineRequest) -> EngineRequest:
    """Ask for log-probabilities of the answer's tokens, unless the client does."""
    params, relay = request.params, request.relay
    if params.logprobs is None:
        params = msgspec.structs.replace(params, logprobs=0)
    if relay is not None:
        asked = relay.call.body.get("logprobs")
        if relay.call.kind == "chat":
            relay = relay if asked else _changed(relay, logprobs=True)
        elif asked is None:
            relay = _changed(relay, logprobs=0)
    return msgspec.structs.replace(request, params=params, relay=relay)


def _changed(relay: Relay, **fields: Any) -> Relay:  # noqa: ANN401 - JSON
    call = relay.call._replace(body={**relay.call.body, **fields})
    return msgspec.structs.replace(relay, call=call)


def _sampled(work: Work, *, name: str, samples: int) -> Work:
    """Adapt a request to answers that are only compared: drawn, not the likeliest."""
    requests = [_drawn(one, samples) for one in work.requests]
    options = msgspec.structs.replace(work.options, wakes=False)
    return msgspec.structs.replace(
        work, requests=requests, options=options, num_choices=samples, charged_as=name
    )


def _drawn(request: EngineRequest, samples: int) -> EngineRequest:
    params, relay = request.params, request.relay
    temperature = params.temperature or _TEMPERATURE
    if relay is not None:
        own = {key: value for key, value in relay.call.body.items() if key != "seed"}
        relay = _changed(
            msgspec.structs.replace(relay, call=relay.call._replace(body=own)),
            n=samples,
            temperature=own.get("temperature") or _TEMPERATURE,
        )
    return msgspec.structs.replace(
        request,
        has_other_target=True,
        params=msgspec.structs.replace(params, seed=None, temperature=temperature),
        relay=relay,
    )
