"""Start of one generation: a validated request at the model that answers it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gatewayd.http.queue_timeout import within_queue_timeout
from gatewayd.http.server.disconnect import DisconnectSignal
from gatewayd.http.services import Services
from gatewayd.pipeline.generation import Generation
from gatewayd.pipeline.work import Work
from gatewayd.tenants.principal import Principal
from gatewayd_hooks.targets.model_routing import RoutedRequest

if TYPE_CHECKING:
    from gatewayd.http.openai.generate import PreparedRequest


class GenerationCall(msgspec.Struct, frozen=True, kw_only=True):
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


async def start_at(
    services: Services, call: GenerationCall, change: Callable[[Work], Work] | None = None
) -> StartedGeneration:
    """Prepare a request for a model and submit it.

    Args:
        services: of the model.
        call: the request.
        change: adapts it; None for nothing.

    Raises:
        GatewayError: it is refused.
    """
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
