"""Admission that keeps one tenant from filling the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewayd_admit_room.config import RoomConfig
from gatewayd_hooks.admission import AdmissionRequest, Load, Refusal

if TYPE_CHECKING:
    from gatewayd_hooks.resources import GatewayResources


class Room:
    """Rejects a tenant's requests beyond its part of the queue; without tenants, accepts all."""

    def __init__(self, config: RoomConfig) -> None:
        self._share = config.tenant_share

    def open(self, resources: GatewayResources) -> None:
        """Do nothing: the served model does not matter."""

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def admit(self, request: AdmissionRequest, load: Load) -> Refusal | None:
        """Check the tenant's waiting requests; its first request is always accepted."""
        if not request.tenant or not load.tenant_requests:
            return None
        most_requests = load.limit_requests * self._share
        most_tokens = load.limit_tokens * self._share
        if load.tenant_requests + 1 > most_requests:
            text = f"{load.tenant_requests} requests of yours are waiting; {most_requests:.0f} may"
        elif load.tenant_tokens + request.prompt_tokens > most_tokens:
            text = (
                f"{load.tenant_tokens} prompt tokens of yours are waiting and this request brings "
                f"{request.prompt_tokens}; {most_tokens:.0f} may"
            )
        else:
            return None
        return Refusal("tenant_queue", f"{text}; try again later", 1.0, is_tenants=True)

    def began(self, request: AdmissionRequest, load: Load, seconds: float) -> None:
        """Do nothing: there is nothing to learn."""
