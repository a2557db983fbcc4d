"""Routers: which engine replica serves a request. They run in the gateway, per request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gatewayd_hooks.strategy import Strategy

if TYPE_CHECKING:
    from gatewayd_hooks.resources import GatewayResources


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """Properties of a request that a router may use.

    Attributes:
        prompt: prompt ids.
        salt: the prefix cache's salt; equal prompts with different salts share nothing.
        priority: ``Priority`` as a number.
        cache_key: the client's own name for requests with a common prefix; empty without one.
    """

    prompt: Sequence[int]
    salt: bytes
    priority: int
    cache_key: str = ""


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """Load of one engine replica that can take a request.

    Attributes:
        index: its number, stable while the daemon runs.
        num_running: sequences in its batch.
        num_waiting: sequences in its queue, including those just sent to it.
        queued_tokens: prompt tokens sent to it and not yet computed.
        kv_usage: fraction of its pages in use, 0 to 1.
    """

    index: int
    num_running: int
    num_waiting: int
    queued_tokens: int
    kv_usage: float


class RouterStrategy(Strategy, Protocol):
    """Chooses one of the given replicas for every request; it must not fail."""

    def open(self, resources: GatewayResources) -> None:
        """Read the number of replicas."""

    def route(self, request: RouteRequest, replicas: Sequence[ReplicaView]) -> int:
        """Choose a replica.

        Args:
            request: the request to route.
            replicas: ready replicas, at least one, in order of ``index``.

        Returns:
            The ``index`` of one of them.
        """
