"""Rendezvous hashing of the prompt's prefix, with bounded load."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

from gatewayd_hooks.routing import ReplicaView, RouteRequest
from gatewayd_route_prefix.config import PrefixConfig

if TYPE_CHECKING:
    from gatewayd_hooks.resources import GatewayResources


class Prefix:
    """Ranks the replicas for each prefix; the first in the ranking that is not busy serves.

    A cache key of the client replaces the prefix.

    A ranking depends only on the prefix and the replicas' numbers: when a replica is lost, only its
    own prefixes move, and they return with it. No state is stored.
    """

    def __init__(self, config: PrefixConfig) -> None:
        self._config = config

    def open(self, resources: GatewayResources) -> None:
        """Do nothing: no resources are needed."""

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def route(self, request: RouteRequest, replicas: Sequence[ReplicaView]) -> int:
        """Choose a replica."""
        loads = [self._load(replica) for replica in replicas]
        most = self._config.busy_factor * min(loads) + self._config.busy_sequences
        # The least loaded one is never busy, so the list is never empty.
        idle = [
            replica.index for replica, load in zip(replicas, loads, strict=True) if load <= most
        ]
        # Then hashing would not change the choice.
        if len(idle) == 1:
            return idle[0]
        beginning = request.cache_key.encode()
        if not beginning:
            beginning = array("q", request.prompt[: self._config.prefix_tokens]).tobytes()
        # Hashed, so that a salt of any length cannot run into the tokens.
        salt = blake2b(request.salt, digest_size=16).digest()
        key = blake2b(beginning, key=salt, digest_size=16).digest()
        return max(idle, key=lambda index: _weight(key, index))

    def _load(self, replica: ReplicaView) -> float:
        sequences = replica.num_running + replica.num_waiting
        return sequences + replica.queued_tokens / self._config.tokens_per_sequence


def _weight(key: bytes, index: int) -> bytes:
    return blake2b(index.to_bytes(8, "little"), key=key, digest_size=8).digest()
