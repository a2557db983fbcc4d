"""Admission by deadline: rejects at once what is forecast to start too late."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewayd_admit_forecast.config import ForecastConfig
from gatewayd_admit_forecast.ttft_forecast import TtftForecast
from gatewayd_hooks.admission import AdmissionRequest, Load, Refusal

if TYPE_CHECKING:
    from gatewayd_hooks.resources import GatewayResources

_RETRY_SECONDS = (1.0, 60.0)


class Forecast:
    """Forecasts a request's first token from the tokens before it, and learns from outcomes.

    Requests without a deadline are accepted. If nothing is waiting all are: a wrong forecast must
    not reject everything forever, and accepted requests correct it.
    """

    def __init__(self, config: ForecastConfig) -> None:
        self._config = config
        self._forecast = TtftForecast(config.confidence)

    def open(self, resources: GatewayResources) -> None:
        """Do nothing: the served model does not matter."""

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def admit(self, request: AdmissionRequest, load: Load) -> Refusal | None:
        """Compare the forecast with the deadline."""
        deadline = request.deadline
        if deadline is None or not load.requests or self._forecast.seen < self._config.least:
            return None
        seconds = self._forecast.promised(self._tokens(request, load))
        if seconds <= deadline:
            return None
        low, high = _RETRY_SECONDS
        # The tenant's own requests are the cause if more than an even share of the waiting tokens
        # is its own.
        is_tenants = (
            bool(request.tenant)
            and load.num_tenants > 1
            and load.tenant_tokens * load.num_tenants > load.tokens
        )
        return Refusal(
            "deadline_unreachable",
            f"the first token would come in {seconds:.1f} s and is wanted in {deadline:g} s; "
            "try again later, or as batch work, which has no deadline",
            retry_after=min(high, max(low, seconds - deadline)),
            is_tenants=is_tenants,
            # The class batch, whose requests have no deadline.
            offers=({"service_tier": "flex"},),
        )

    def began(self, request: AdmissionRequest, load: Load, seconds: float) -> None:
        """Update the forecast."""
        self._forecast.record(self._tokens(request, load), seconds)

    def _tokens(self, request: AdmissionRequest, load: Load) -> int:
        """Return the tokens per replica up to the first generated one."""
        ahead = {
            "arrival": load.tokens,
            "class": load.urgent_tokens,
            # A fair scheduler computes as many tokens of every other tenant before this one's
            # prompt.
            "tenant": min(load.tokens, load.tenant_tokens * load.num_tenants),
        }[self._config.ahead]
        # No replica serves while all engines restart.
        return ahead // max(1, load.num_replicas) + request.prompt_tokens
