"""What a request asks of the engines, once its body has been validated."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gatewayd.engines.api import EngineRequest
from gatewayd.pipeline.choice import ChoiceOptions
from gatewayd.tenants.principal import Principal
from gatewayd.tracing.request_trace import RequestOutline


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What to generate.

    Attributes:
        request_id: the gateway's id.
        endpoint: the route.
        requests: one for each prompt.
        num_choices: for each prompt.
        options: of every choice.
        arrival: when the request came, by the clock.
        principal: who sends it.
        model: its name.
        queue_timeout: seconds from its arrival within which an engine must begin; None for ever.
    """

    request_id: str
    endpoint: str
    requests: Sequence[EngineRequest]
    num_choices: int
    options: ChoiceOptions
    arrival: float
    principal: Principal
    model: str
    queue_timeout: float | None = None

    @property
    def outline(self) -> RequestOutline:
        """Its figures, without its prompts."""
        return RequestOutline(
            self.requests[0].priority,
            sum([len(request.prompt) for request in self.requests]),
            self.num_choices * len(self.requests),
        )
