"""Texts to vectors: prompts whose hidden states are added up instead of being continued."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from gatewayd.engines.api import EngineRequest, ReplicaState
from gatewayd.errors import ContextLengthExceeded, InternalError, InvalidRequest, NumericalError
from gatewayd.http.asgi import Header
from gatewayd.http.openai.answer_headers import answer_headers
from gatewayd.http.openai.chat_prompt import most_counted
from gatewayd.http.openai.sampling import check_ids, priority_of, salt_of
from gatewayd.http.schema.embeddings import PoolingTable
from gatewayd.http.server.disconnect import DisconnectSignal
from gatewayd.http.services import Services
from gatewayd.http.vectors.prompts import answered, check_room, options_of, waves
from gatewayd.pipeline.timing import RequestTiming
from gatewayd.pipeline.work import Work
from gatewayd.tenants.principal import Principal
from gatewayd.text.tokenizer import PER_TEXT
from gatewayd_engine.process.messages import ModelInfo, SamplingParams

_STEPS = 4
"""Of the engine, that a wave of prompts fills: whoever comes meanwhile waits for no more."""

Vectors = NDArray[np.float64]


class Given(NamedTuple):
    """One text.

    Attributes:
        value: it, or its token ids.
        field: that it came in.
        at: its place in the field; None where the field is one text.
        limit: tokens to cut it to; None for no more than the request says.
    """

    value: str | list[int]
    field: str
    at: int | None = None
    limit: int | None = None

    @property
    def param(self) -> str:
        """Its name in errors."""
        return self.field if self.at is None else f"{self.field}[{self.at}]"


async def pooling_work(
    services: Services,
    request: PoolingTable,
    given: Sequence[Given],
    *,
    request_id: str,
    endpoint: str,
    arrival: float,
    principal: Principal,
) -> Work:
    """Make prompts of texts.

    Raises:
        GatewayError: one is empty, too long or has ids that the model does not have.
    """
    model = await services.loaded_model()
    prompts = await _encode(services, request, given, model)
    params = SamplingParams(max_tokens=1, ignore_eos=True, pooling=request.pooling or "mean")
    priority, salt = priority_of(request), salt_of(request)
    requests = [
        EngineRequest(
            request_id=request_id if len(prompts) == 1 else f"{request_id}-{at}",
            prompt=prompt,
            params=params,
            salt=salt,
            priority=priority,
            retry_started=True,
        )
        for at, prompt in enumerate(prompts)
    ]
    check_room(services, requests, given[-1].field)
    return Work(
        request_id=request_id,
        endpoint=endpoint,
        requests=requests,
        num_choices=1,
        options=options_of(services, discard=True),
        arrival=arrival,
        principal=principal,
        model=services.check_model(request.model),
    )


async def _encode(
    services: Services, request: PoolingTable, given: Sequence[Given], model: ModelInfo
) -> list[list[int]]:
    tokenizer, most = services.text.tokenizer, model.max_model_len - 1
    asked = request.truncate_prompt_tokens
    if asked == 0 or (asked or 0) > most:
        raise InvalidRequest(
            f"truncate_prompt_tokens is {asked}; it must be from 1 to {most}, or -1 for {most}",
            param="truncate_prompt_tokens",
        )
    cut = most if asked == -1 else asked
    length = sum([len(one.value) for one in given])
    longest = most_counted(model.max_model_len)
    if length > longest and (cut or given[-1].limit):
        raise InvalidRequest(
            f"the texts have {length} characters; the maximum of what is cut is {longest}: send "
            "them in parts",
            param=given[-1].field,
        )

    def encode() -> list[list[int]]:
        return [_encode_one(one) for one in given]

    def _encode_one(one: Given) -> list[int]:
        limits = [limit for limit in (cut, one.limit) if limit is not None]
        if not isinstance(one.value, str):
            check_ids(one.value, model.vocab_size, one.param)
            ids = one.value
        else:
            at_least = len(one.value) // tokenizer.longest_token
            if at_least > most and not limits:
                raise _too_long(one, f"at least {at_least}", most)
            ids = tokenizer.encode(one.value, add_special=request.add_special_tokens)
        if limits and len(ids) > min(limits):
            limit = min(limits)
            ids = ids[-limit:] if request.truncation_side == "left" else ids[:limit]
        if len(ids) > most:
            raise _too_long(one, str(len(ids)), most)
        if not ids:
            raise InvalidRequest(f"{one.param} has no tokens; it needs one", param=one.param)
        return ids

    return await tokenizer.run_by_size(length + PER_TEXT * len(given), encode)


def _too_long(one: Given, count: str, most: int) -> ContextLengthExceeded:
    return ContextLengthExceeded(
        f"{one.param} has {count} tokens; the model takes at most {most}: shorten it, or set "
        "truncate_prompt_tokens",
        param=one.param,
    )


class PooledPrompts(NamedTuple):
    """All prompts of a request, answered.

    Attributes:
        make: gives the vectors, shape ``[prompts, hidden_size]``; to be called where it may take a
            moment. It raises ``NumericalError`` where one is not finite, and ``InternalError``
            where tokens are missing.
        prompt_tokens: of all.
        cached_tokens: of those, what was found in the prefix cache.
        timing: of the last wave.
        headers: of the answer.
    """

    make: Callable[[], Vectors]
    prompt_tokens: int
    cached_tokens: int
    timing: RequestTiming
    headers: list[Header]


async def pooled(
    services: Services, work: Work, disconnect: DisconnectSignal | None
) -> PooledPrompts:
    """Let the engines answer all prompts, so many at a time that others come between them.

    Args:
        services: of the gateway.
        work: the prompts.
        disconnect: of the client; None where the task is cancelled when it leaves.

    Raises:
        GatewayError: it failed.
        ClientGone: nobody waits for it any more.
    """
    told: list[list[tuple[int, bytes]]] = []
    prompt_tokens = cached_tokens = 0
    for wave in await _waves(services, work.requests):
        part = msgspec.structs.replace(work, requests=wave)
        async with answered(services, part, disconnect) as generation:
            told += [choice.pooled_prompt for choice in generation.choices]
            prompt_tokens += generation.prompt_tokens
            cached_tokens += generation.cached_tokens
            timing = generation.timing
            headers = answer_headers(generation, services.fleet.room)
    make = _vectors_of(told, work.requests)
    return PooledPrompts(make, prompt_tokens, cached_tokens, timing, headers)


async def _waves(
    services: Services, requests: Sequence[EngineRequest]
) -> Iterator[list[EngineRequest]]:
    model, replicas = await services.loaded_model(), 1
    if len(requests) > 1:
        states = [replica.state for replica in services.fleet.status()]
        replicas = max(1, states.count(ReplicaState.READY))
    steps = _STEPS * replicas
    return waves(requests, steps * model.max_running, steps * model.max_batch_tokens)


def _vectors_of(
    told: Sequence[Sequence[tuple[int, bytes]]], requests: Sequence[EngineRequest]
) -> Callable[[], Vectors]:
    is_last = requests[0].params.pooling == "last"
    counts = [1 if is_last else len(request.prompt) for request in requests]

    def make() -> Vectors:
        vectors = np.stack([_mean(sums, count) for sums, count in zip(told, counts, strict=True)])
        if not np.isfinite(vectors).all():
            raise NumericalError("the model's hidden states are not finite")
        return vectors

    return make


def _mean(sums: Sequence[tuple[int, bytes]], count: int) -> Vectors:
    if sum([some for some, _ in sums]) != count:
        raise InternalError("the engine did not return all hidden states of a prompt")
    parts = np.stack([np.frombuffer(vector, "<f4") for _, vector in sums])
    mean: Vectors = parts.sum(axis=0, dtype=np.float64) / count
    return mean


def unit(vectors: Vectors) -> Vectors:
    """Each vector at length 1; one of zeros stays."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: Vectors = vectors / np.where(lengths > 0, lengths, 1)
    return scaled
