"""Embedding of texts: prompts whose hidden states are pooled, without generation."""

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
from gatewayd.http.vectors.prompts import (
    check_fits_queue,
    non_streaming_options,
    prompt_batches,
    run_prompts,
)
from gatewayd.pipeline.relayed_choice import RelayedChoice
from gatewayd.pipeline.timing import RequestTiming
from gatewayd.pipeline.work import Work
from gatewayd.tenants.principal import Principal
from gatewayd.text.tokenizer import PER_TEXT
from gatewayd_engine.process.messages import ModelInfo, SamplingParams

_STEPS = 4
"""Engine steps that a batch of prompts may fill, to bound the wait of other requests."""

Vectors = NDArray[np.float64]


class PoolingInput(NamedTuple):
    """One text to embed.

    Attributes:
        value: the text, or its token ids.
        field: the request's field that contains it.
        at: its index in the field; None if the field is a single text.
        limit: tokens to truncate it to; None for the request's limit only.
    """

    value: str | list[int]
    field: str
    at: int | None = None
    limit: int | None = None

    @property
    def param(self) -> str:
        """Path of the text in the request, for errors."""
        return self.field if self.at is None else f"{self.field}[{self.at}]"


async def pooling_work(
    services: Services,
    request: PoolingTable,
    given: Sequence[PoolingInput],
    *,
    request_id: str,
    endpoint: str,
    arrival: float,
    principal: Principal,
) -> Work:
    """Encode texts as pooling prompts.

    Raises:
        GatewayError: a text is empty, too long or has invalid token ids.
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
    check_fits_queue(services, requests, given[-1].field)
    return Work(
        request_id=request_id,
        endpoint=endpoint,
        requests=requests,
        num_choices=1,
        options=non_streaming_options(services, discard=True),
        arrival=arrival,
        principal=principal,
        model=request.model or services.name,
        # A route's requests are charged as those of its target.
        charged_as=services.target.name if request.model in services.catalogue.routes else "",
    )


async def _encode(
    services: Services, request: PoolingTable, given: Sequence[PoolingInput], model: ModelInfo
) -> list[list[int]]:
    # The engine generates one token after each prompt.
    tokenizer, most = services.text.tokenizer, model.max_model_len - 1
    asked = request.truncate_prompt_tokens
    if asked == 0 or (asked or 0) > most:
        raise InvalidRequest(
            f"truncate_prompt_tokens is {asked}; it must be from 1 to {most}, or -1 for {most}",
            param="truncate_prompt_tokens",
        )
    cut = most if asked == -1 else asked
    length = sum([len(one.value) for one in given])
    # Long text is refused without encoding it, unless it is to be truncated.
    longest = most_counted(model.max_model_len)
    if length > longest and (cut or given[-1].limit):
        raise InvalidRequest(
            f"the texts have {length} characters; the maximum for truncation is {longest}: send "
            "them in parts",
            param=given[-1].field,
        )

    def encode() -> list[list[int]]:
        return [_encode_one(one) for one in given]

    def _encode_one(one: PoolingInput) -> list[int]:
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


def _too_long(one: PoolingInput, count: str, most: int) -> ContextLengthExceeded:
    return ContextLengthExceeded(
        f"{one.param} has {count} tokens; the maximum of the model is {most}: shorten it, or set "
        "truncate_prompt_tokens",
        param=one.param,
    )


class PooledPrompts(NamedTuple):
    """Pooled hidden states of all prompts of a request.

    Attributes:
        make: computes the vectors, shape ``[prompts, hidden_size]``; to be called off the event
            loop. Raises ``NumericalError`` if one is not finite, and ``InternalError`` if tokens
            are missing.
        prompt_tokens: of all prompts.
        cached_tokens: of these, prefix-cache hits.
        timing: of the last batch.
        headers: of the response.
        is_final: whether an upstream made the vectors: as requested, and of their own length.
    """

    make: Callable[[], Vectors]
    prompt_tokens: int
    cached_tokens: int
    timing: RequestTiming
    headers: list[Header]
    is_final: bool = False


async def pool_prompts(
    services: Services, work: Work, disconnect: DisconnectSignal | None
) -> PooledPrompts:
    """Run all prompts on the engines, in batches so that other requests can interleave.

    An upstream gets all inputs in one request.

    Args:
        services: of the gateway.
        work: the prompts.
        disconnect: of the client; None if the task is cancelled on disconnect.

    Raises:
        GatewayError: the request failed.
        ClientGone: the client disconnected.
    """
    if work.requests[0].relay is not None:
        return await _relay(services, work, disconnect)
    sums_by_prompt: list[list[tuple[int, bytes]]] = []
    prompt_tokens = cached_tokens = 0
    for batch in await _prompt_batches(services, work.requests):
        part = msgspec.structs.replace(work, requests=batch)
        async with run_prompts(services, part, disconnect) as generation:
            # Copied out here: the generation drops its choices at the end of the block.
            sums_by_prompt += [choice.pooled_prompt for choice in generation.choices]
            prompt_tokens += generation.prompt_tokens
            cached_tokens += generation.cached_tokens
            timing = generation.timing
            headers = answer_headers(generation, services.fleet.room)
    make = _vectors_of(sums_by_prompt, work.requests)
    return PooledPrompts(make, prompt_tokens, cached_tokens, timing, headers)


async def _relay(
    services: Services, work: Work, disconnect: DisconnectSignal | None
) -> PooledPrompts:
    """Get the vectors of an upstream."""
    async with run_prompts(services, work, disconnect) as generation:
        choice = generation.choices[0]
        vectors = choice.vectors if isinstance(choice, RelayedChoice) else None
        if vectors is None:
            raise InternalError("an upstream has ended a request without embeddings")
        found: Vectors = vectors
        return PooledPrompts(
            lambda: found,
            generation.prompt_tokens,
            generation.cached_tokens,
            generation.timing,
            answer_headers(generation, services.fleet.room),
            is_final=True,
        )


async def _prompt_batches(
    services: Services, requests: Sequence[EngineRequest]
) -> Iterator[list[EngineRequest]]:
    model, replicas = await services.loaded_model(), 1
    # A single prompt is one batch in any case.
    if len(requests) > 1:
        states = [replica.state for replica in services.fleet.status()]
        replicas = max(1, states.count(ReplicaState.READY))
    steps = _STEPS * replicas
    return prompt_batches(requests, steps * model.max_running, steps * model.max_batch_tokens)


def _vectors_of(
    sums_by_prompt: Sequence[Sequence[tuple[int, bytes]]], requests: Sequence[EngineRequest]
) -> Callable[[], Vectors]:
    is_last = requests[0].params.pooling == "last"
    counts = [1 if is_last else len(request.prompt) for request in requests]

    def make() -> Vectors:
        vectors = np.stack(
            [_mean(sums, count) for sums, count in zip(sums_by_prompt, counts, strict=True)]
        )
        if not np.isfinite(vectors).all():
            raise NumericalError("the model's hidden states are not finite")
        return vectors

    return make


def _mean(sums: Sequence[tuple[int, bytes]], count: int) -> Vectors:
    if sum([some for some, _ in sums]) != count:
        raise InternalError("the engine did not return all hidden states of a prompt")
    parts = np.stack([np.frombuffer(vector, "<f4") for _, vector in sums])
    # In float64, as long prompts have many parts.
    mean: Vectors = parts.sum(axis=0, dtype=np.float64) / count
    return mean


def normalize(vectors: Vectors) -> Vectors:
    """Scale each vector to length 1; zero vectors are unchanged."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: Vectors = vectors / np.where(lengths > 0, lengths, 1)
    return scaled
