"""A queue that one tenant cannot fill."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewayd_admit_room.config import RoomConfig
from gatewayd_hooks.admission import AdmissionRequest, Load, Refusal

if TYPE_CHECKING:
    from gatewayd_hooks.resources import GatewayResources


class Room:
    """Refuses a tenant that has its part of the queue already; without tenants, nobody."""

    def __init__(self, config: RoomConfig) -> None:
        self._share = config.tenant_share

    def open(self, resources: GatewayResources) -> None:
        """What is served does not matter here."""

    def close(self) -> None:
        """Nothing to give back."""

    def admit(self, request: AdmissionRequest, load: Load) -> Refusal | None:
        """Look at what the tenant has waiting; its first request is always taken on."""
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
        """Nothing to learn."""
