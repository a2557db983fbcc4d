"""Execution of many prompts for their scores or hidden states, without generated text."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager

from gatewayd.engines.api import EngineRequest
from gatewayd.errors import ClientGone, InvalidRequest
from gatewayd.http.server.disconnect import DisconnectSignal
from gatewayd.http.services import Services
from gatewayd.pipeline.choice import ChoiceOptions
from gatewayd.pipeline.generation import Generation
from gatewayd.pipeline.work import Work


def check_fits_queue(services: Services, requests: Sequence[EngineRequest], param: str) -> None:
    """Check that a request can ever fit into the queue.

    Raises:
        InvalidRequest: it has more prompts or tokens than the queue's limits.
    """
    room, count = services.fleet.room, len(requests)
    if count > room.limit_requests:
        raise InvalidRequest(
            f"{param} makes {count} prompts; the queue holds at most {room.limit_requests}: send "
            "them in parts",
            param=param,
        )
    tokens = sum([len(one.prompt) for one in requests])
    # A single prompt above the limit is accepted when nothing else waits, see `Backlog.check`.
    if count > 1 and tokens > room.limit_tokens:
        raise InvalidRequest(
            f"{param} has {tokens} tokens; the queue holds at most {room.limit_tokens}: send it in "
            "parts",
            param=param,
        )


@asynccontextmanager
async def run_prompts(
    services: Services, work: Work, disconnect: DisconnectSignal | None
) -> AsyncIterator[Generation]:
    """Run all prompts on the engines; the generation is closed at the end of the block.

    Args:
        services: of the gateway.
        work: the prompts.
        disconnect: of the client; None if the task is cancelled on disconnect.

    Raises:
        GatewayError: the request failed.
        ClientGone: the client disconnected.
    """
    generation = await services.pipeline.start(work)
    if disconnect is not None:
        disconnect.add_listener(generation.abandon)
    try:
        await generation.finish()
        if generation.is_abandoned:
            raise ClientGone
        yield generation
    finally:
        generation.close()
        if disconnect is not None:
            disconnect.remove_listener(generation.abandon)


def non_streaming_options(services: Services, *, discard: bool) -> ChoiceOptions:
    """Return the options of choices that are read only at their end.

    Args:
        services: of the gateway.
        discard: whether generated tokens are discarded.
    """
    tokenizer = services.text.tokenizer
    return ChoiceOptions(detokenizer=tokenizer.detokenizer, wakes=False, discard=discard)


def prompt_batches(
    requests: Iterable[EngineRequest], most: int, most_tokens: float
) -> Iterator[list[EngineRequest]]:
    """Split requests into batches by count and tokens; an oversized one is a batch by itself."""
    batch: list[EngineRequest] = []
    tokens = 0
    for one in requests:
        if batch and (len(batch) == most or tokens + len(one.prompt) > most_tokens):
            yield batch
            batch, tokens = [], 0
        batch.append(one)
        tokens += len(one.prompt)
    if batch:
        yield batch
