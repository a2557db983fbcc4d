"""Exact log-probabilities of given continuations of prompts, without recomputing the prompts.

The continuations of a prompt form a tree of tokens. For each inner node, the engine returns the
most likely next tokens; a child that is not among them gets its own request, forced by a logit
bias, which does not change the reported log-probability. Each request generates one token after a
prompt that is in the prefix cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from math import inf
from typing import NamedTuple

import msgspec

from gatewayd.engines.api import EngineRequest
from gatewayd.errors import InternalError
from gatewayd.http.asgi import Header
from gatewayd.http.openai.answer_headers import answer_headers
from gatewayd.http.server.disconnect import DisconnectSignal
from gatewayd.http.services import Services
from gatewayd.http.vectors.prompts import non_streaming_options, prompt_batches, run_prompts
from gatewayd.pipeline.choice_types import ScoredToken
from gatewayd.pipeline.generation import Generation
from gatewayd.pipeline.work import Work
from gatewayd.tenants.principal import Principal
from gatewayd_engine.process.messages import SamplingParams

_MOST_ALTERNATIVES = 128
_MOST_AT_ONCE = 512
# Outweighs any logit. Log-probabilities are reported of raw logits, so it does not change them.
_FORCE = 1e6

Ids = tuple[int, ...]


class ContinuationNode(NamedTuple):
    """Node of a prompt's tree of continuations.

    Attributes:
        prompt: index of the prompt.
        suffix: tokens that follow the prompt.
    """

    prompt: int
    suffix: Ids


@dataclass(slots=True, eq=False, repr=False)
class ContinuationScorer:
    """Scores continuations on the engines, for one request.

    Args:
        services: of the gateway.
        base: template of all engine requests.
        disconnect: signal of the client.

    Attributes:
        endpoint: the route.
        arrival: time of the request's arrival, by the gateway's clock.
        principal: the authenticated client.
        model: name of the model.
        input_tokens: of the prompts, each counted once.
        cached_tokens: of these, prefix-cache hits.
        headers: of the response.
    """

    _services: Services
    _base: EngineRequest
    _disconnect: DisconnectSignal
    _: KW_ONLY
    endpoint: str
    arrival: float
    principal: Principal
    model: str
    _num_requests: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    headers: list[Header] = field(default_factory=list)

    async def scores(
        self, prompts: Sequence[Sequence[int]], labels: Sequence[Sequence[Ids]], vocab_size: int
    ) -> list[list[float]]:
        """Return the log-probabilities of each prompt's labels, no label a prefix of another.

        Args:
            prompts: token ids.
            labels: token ids of each prompt's labels.
            vocab_size: of the model.

        Raises:
            GatewayError: the request failed.
            ClientGone: the client disconnected.
        """
        children: dict[ContinuationNode, list[int]] = {}
        for at, many in enumerate(labels):
            for label in many:
                # Inner nodes of the tree, each with the tokens that follow it.
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
        # First the most likely next tokens of each inner node, one request for each.
        queries = [(node, params) for node in children]
        for (node, _), logprobs in zip(
            queries, await self._next_token_logprobs(prompts, queries), strict=True
        ):
            found.update(
                (ContinuationNode(node.prompt, (*node.suffix, t)), p) for t, p in logprobs.items()
            )
        # Then the children that were not among them.
        forced = [
            (node, msgspec.structs.replace(params, logprobs=0, logit_bias=[(token, _FORCE)]))
            for node, tokens in children.items()
            for token in tokens
            if ContinuationNode(node.prompt, (*node.suffix, token)) not in found
        ]
        for (node, one), logprobs in zip(
            forced, await self._next_token_logprobs(prompts, forced), strict=True
        ):
            token = one.logit_bias[0][0]
            if token not in logprobs:
                raise InternalError("a logits processor prevents scoring of the labels")
            found[ContinuationNode(node.prompt, (*node.suffix, token))] = logprobs[token]
        return [
            [
                sum([found[ContinuationNode(at, label[:end])] for end in range(1, len(label) + 1)])
                for label in many
            ]
            for at, many in enumerate(labels)
        ]

    async def _next_token_logprobs(
        self,
        prompts: Sequence[Sequence[int]],
        queries: Sequence[tuple[ContinuationNode, SamplingParams]],
    ) -> list[dict[int, float]]:
        """Return the log-probabilities of the next tokens after each node, by token id."""
        logprobs: list[dict[int, float]] = []
        for some in self._batches(self._requests(prompts, queries)):
            work = Work(
                request_id=self._base.request_id,
                endpoint=self.endpoint,
                requests=some,
                num_choices=1,
                options=non_streaming_options(self._services, discard=False),
                arrival=self.arrival,
                principal=self.principal,
                model=self.model,
            )
            async with run_prompts(self._services, work, self._disconnect) as generation:
                logprobs += [_read(generation, at) for at in range(len(some))]
                self.headers = answer_headers(generation, self._services.fleet.room)
                for at, choice in enumerate(generation.choices):
                    node, params = queries[len(logprobs) - len(some) + at]
                    # Each prompt counts once: at its root, before any token is forced.
                    if not node.suffix and not params.logit_bias:
                        self.input_tokens += len(some[at].prompt)
                        self.cached_tokens += choice.cached_tokens
        return logprobs

    def _requests(
        self,
        prompts: Sequence[Sequence[int]],
        queries: Sequence[tuple[ContinuationNode, SamplingParams]],
    ) -> Iterator[EngineRequest]:
        """Build the engine requests lazily, because all of them together may be large."""
        for node, params in queries:
            number, self._num_requests = self._num_requests, self._num_requests + 1
            request_id = f"{self._base.request_id}-{number}"
            prompt = [*prompts[node.prompt], *node.suffix]
            yield _with(self._base, request_id, prompt, params)

    def _batches(self, requests: Iterable[EngineRequest]) -> Iterator[list[EngineRequest]]:
        """Split requests into batches that leave capacity in the queue for other requests."""
        room = self._services.fleet.room
        most, most_tokens = min(_MOST_AT_ONCE, room.limit_requests), room.limit_tokens / 2
        return prompt_batches(requests, most, most_tokens)


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
    if len(scored) != 1 or not isinstance(scored[0], ScoredToken):
        raise InternalError("the engine returned no probability of a token")
    one = scored[0].logprobs
    logprobs = dict(zip(one.top_tokens, one.top_logprobs, strict=True))
    logprobs[one.token] = one.logprob
    # NaN stands for a probability below float32's range.
    return {token: p if p == p else -inf for token, p in logprobs.items()}
