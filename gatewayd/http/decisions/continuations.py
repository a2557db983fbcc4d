"""How likely given continuations of prompts are: exactly, and without computing prompts again.

The continuations of a prompt are a tree of tokens. For each inner node the engine tells the
likeliest next tokens; a child that is not among them is asked for by itself, forced by a bias,
which does not change what is told of it. Either is one token behind a prompt that the prefix cache
has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import NamedTuple

import msgspec

from gatewayd.engines.api import EngineRequest
from gatewayd.errors import InternalError
from gatewayd.http.asgi import Header
from gatewayd.http.openai.answer_headers import answer_headers
from gatewayd.http.server.disconnect import DisconnectSignal
from gatewayd.http.services import Services
from gatewayd.http.vectors.prompts import answered, options_of, waves
from gatewayd.pipeline.generation import Generation
from gatewayd.pipeline.work import Work
from gatewayd.tenants.principal import Principal
from gatewayd_engine.process.messages import SamplingParams

_MOST_ALTERNATIVES = 128
_MOST_AT_ONCE = 512
_FORCE = 1e6

Ids = tuple[int, ...]


class ContinuationNode(NamedTuple):
    """A prompt and some tokens behind it.

    Attributes:
        prompt: which.
        behind: the tokens.
    """

    prompt: int
    behind: Ids


class Continuations:
    """Asks the engines, for one request.

    Attributes:
        input_tokens: of the prompts, each counted once.
        cached_tokens: of those, what was found in the prefix cache.
        headers: of the answer.
    """

    def __init__(
        self,
        services: Services,
        base: EngineRequest,
        disconnect: DisconnectSignal,
        *,
        endpoint: str,
        arrival: float,
        principal: Principal,
        model: str,
    ) -> None:
        """Prepare to ask.

        Args:
            services: of the gateway.
            base: what all prompts have in common.
            disconnect: of the client.
            endpoint: the route.
            arrival: when the request came, by the clock.
            principal: who sends it.
            model: its name.
        """
        self._services = services
        self._base = base
        self._departure = disconnect
        self._endpoint = endpoint
        self._arrival = arrival
        self._principal = principal
        self._model = model
        self._num_asked = 0
        self.input_tokens = self.cached_tokens = 0
        self.headers: list[Header] = []

    async def scores(
        self, prompts: Sequence[Sequence[int]], labels: Sequence[Sequence[Ids]], vocab_size: int
    ) -> list[list[float]]:
        """Log-probabilities of each prompt's labels, none of which begins another.

        Args:
            prompts: token ids.
            labels: of each prompt, token ids.
            vocab_size: of the model.

        Raises:
            GatewayError: it failed.
            ClientGone: nobody waits for it any more.
        """
        children: dict[ContinuationNode, list[int]] = {}
        for at, many in enumerate(labels):
            for label in many:
                for depth, token in enumerate(label):
                    tokens = children.setdefault(ContinuationNode(at, label[:depth]), [])
                    if token not in tokens:
                        tokens.append(token)
        params = SamplingParams(
            max_tokens=1,
            temperature=0.0,
            ignore_eos=True,
            logprobs=min(_MOST_ALTERNATIVES, vocab_size),
        )
        found: dict[ContinuationNode, float] = {}
        asks = [(node, params) for node in children]
        for (node, _), told in zip(asks, await self._ask(prompts, asks), strict=True):
            found.update(
                (ContinuationNode(node.prompt, (*node.behind, t)), p) for t, p in told.items()
            )
        forced = [
            (node, msgspec.structs.replace(params, logprobs=0, logit_bias=[(token, _FORCE)]))
            for node, tokens in children.items()
            for token in tokens
            if ContinuationNode(node.prompt, (*node.behind, token)) not in found
        ]
        for (node, one), told in zip(forced, await self._ask(prompts, forced), strict=True):
            token = one.logit_bias[0][0]
            if token not in told:
                raise InternalError("a logits processor prevents scoring of the labels")
            found[ContinuationNode(node.prompt, (*node.behind, token))] = told[token]
        return [
            [
                sum([found[ContinuationNode(at, label[:end])] for end in range(1, len(label) + 1)])
                for label in many
            ]
            for at, many in enumerate(labels)
        ]

    async def _ask(
        self,
        prompts: Sequence[Sequence[int]],
        asks: Sequence[tuple[ContinuationNode, SamplingParams]],
    ) -> list[dict[int, float]]:
        """What is told of the token behind each node, by token."""
        told: list[dict[int, float]] = []
        for some in self._waves(self._requests(prompts, asks)):
            work = Work(
                request_id=self._base.request_id,
                endpoint=self._endpoint,
                requests=some,
                num_choices=1,
                options=options_of(self._services, discard=False),
                arrival=self._arrival,
                principal=self._principal,
                model=self._model,
            )
            async with answered(self._services, work, self._departure) as generation:
                told += [_read(generation, at) for at in range(len(some))]
                self.headers = answer_headers(generation, self._services.fleet.room)
                for at, choice in enumerate(generation.choices):
                    node, params = asks[len(told) - len(some) + at]
                    if not node.behind and not params.logit_bias:
                        self.input_tokens += len(some[at].prompt)
                        self.cached_tokens += choice.cached_tokens
        return told

    def _requests(
        self,
        prompts: Sequence[Sequence[int]],
        asks: Sequence[tuple[ContinuationNode, SamplingParams]],
    ) -> Iterator[EngineRequest]:
        """One after the other: all of them together may be large."""
        for node, params in asks:
            number, self._num_asked = self._num_asked, self._num_asked + 1
            request_id = f"{self._base.request_id}-{number}"
            prompt = [*prompts[node.prompt], *node.behind]
            yield _with(self._base, request_id, prompt, params)

    def _waves(self, requests: Iterable[EngineRequest]) -> Iterator[list[EngineRequest]]:
        """As many at a time as the queue takes, so that others have room in it."""
        room = self._services.fleet.room
        most, most_tokens = min(_MOST_AT_ONCE, room.limit_requests), room.limit_tokens / 2
        return waves(requests, most, most_tokens)


def _with(
    base: EngineRequest, request_id: str, prompt: Sequence[int], params: SamplingParams
) -> EngineRequest:
    return EngineRequest(
        request_id=request_id,
        prompt=prompt,
        params=params,
        salt=base.salt,
        cache_key=base.cache_key,
        priority=base.priority,
        retry_started=True,
    )


def _read(generation: Generation, at: int) -> dict[int, float]:
    scored = generation.choices[at].pop_scored_tokens()
    if len(scored) != 1:
        raise InternalError("the engine returned no probability of a token")
    one = scored[0].logprobs
    told = dict(zip(one.top_tokens, one.top_logprobs, strict=True))
    told[one.token] = one.logprob
    # What is beyond float32 is as good as impossible.
    return {token: p if p == p else -inf for token, p in told.items()}
