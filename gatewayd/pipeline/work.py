"""Validated request, as it is submitted to the engines."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gatewayd.engines.api import EngineRequest
from gatewayd.pipeline.choice import ChoiceOptions
from gatewayd.tenants.principal import Principal
from gatewayd.tracing.request_trace import RequestOutline


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """Validated generation request.

    Attributes:
        request_id: the gateway's id.
        endpoint: the route.
        requests: engine requests, one for each prompt.
        num_choices: for each prompt.
        options: of every choice.
        arrival: time of the request's arrival, by the pipeline's clock.
        principal: the authenticated client.
        model: the model's name.
        charged_as: name by which its usage is priced and recorded; empty for ``model``.
        queue_timeout: seconds from the arrival within which an engine must admit it; None for no
            limit.
    """

    request_id: str
    endpoint: str
    requests: Sequence[EngineRequest]
    num_choices: int
    options: ChoiceOptions
    arrival: float
    principal: Principal
    model: str
    charged_as: str = ""
    queue_timeout: float | None = None

    @property
    def outline(self) -> RequestOutline:
        """Priority and sizes of the request, without its prompts."""
        return RequestOutline(
            self.requests[0].priority,
            sum([len(request.prompt) for request in self.requests]),
            self.num_choices * len(self.requests),
        )
