"""Many prompts of which something is told, and nothing generated: submit, wait, read, account."""

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


def check_room(services: Services, requests: Sequence[EngineRequest], param: str) -> None:
    """Refuse what would never fit into the queue, however often it is sent.

    Raises:
        InvalidRequest: there are too many prompts, or tokens in them.
    """
    room, count = services.fleet.room, len(requests)
    if count > room.limit_requests:
        raise InvalidRequest(
            f"{param} makes {count} prompts; at most {room.limit_requests} may wait here: send "
            "them in parts",
            param=param,
        )
    tokens = sum([len(one.prompt) for one in requests])
    if count > 1 and tokens > room.limit_tokens:
        raise InvalidRequest(
            f"{param} has {tokens} tokens; at most {room.limit_tokens} may wait here: send it in "
            "parts",
            param=param,
        )


@asynccontextmanager
async def answered(
    services: Services, work: Work, disconnect: DisconnectSignal | None
) -> AsyncIterator[Generation]:
    """Let the engines answer all prompts; with the block the account is closed.

    Args:
        services: of the gateway.
        work: the prompts.
        disconnect: of the client; None where the task is cancelled when it leaves.

    Raises:
        GatewayError: it failed.
        ClientGone: nobody waits for it any more.
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


def options_of(services: Services, *, discard: bool) -> ChoiceOptions:
    """Of choices that nobody reads before the end.

    Args:
        services: of the gateway.
        discard: whether what is generated is thrown away.
    """
    tokenizer = services.text.tokenizer
    return ChoiceOptions(detokenizer=tokenizer.detokenizer, wakes=False, discard=discard)


def waves(
    requests: Iterable[EngineRequest], most: int, most_tokens: float
) -> Iterator[list[EngineRequest]]:
    """Requests so many at a time, and with so many tokens; one that has more goes alone."""
    wave: list[EngineRequest] = []
    tokens = 0
    for one in requests:
        if wave and (len(wave) == most or tokens + len(one.prompt) > most_tokens):
            yield wave
            wave, tokens = [], 0
        wave.append(one)
        tokens += len(one.prompt)
    if wave:
        yield wave
