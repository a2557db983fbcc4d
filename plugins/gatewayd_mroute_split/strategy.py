"""Splits requests by weight, with weighted rendezvous hashing.

Each target draws a number from the hash of the sticky key and its own name, which its weight
scales; the largest wins. A key stays at its target as long as weights stay, on every machine and
after every restart. If a weight grows, keys move to that target only; if one shrinks, keys move
away from it only (Thaler and Ravishankar 1998; weights by logarithms, Schindelhauer and Schomaker
2005).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

from gatewayd_hooks.targets.model_routing import CandidateView, Decision, RoutedRequest
from gatewayd_mroute_split.config import SplitConfig

if TYPE_CHECKING:
    from gatewayd_hooks.resources import GatewayResources

_HASH_BYTES = 8


class Split:
    """Draws from hashes, so that nothing has to be remembered."""

    def __init__(self, config: SplitConfig) -> None:
        self._weights = dict(config.weights)
        self._by = config.by
        self._route = ""

    def open(self, resources: GatewayResources) -> None:
        """Read the route's name: each route splits independently."""
        self._route = resources.model

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def route(self, request: RoutedRequest, candidates: Sequence[CandidateView]) -> Decision:
        """Order the targets by what they drew; those that are not ready come last."""
        sticky = self._sticky(request)
        key = sticky or request.request_id
        scores = {one.name: self._draw(key, one.name) for one in candidates}
        # Without any weight above 0 there is still a target to choose.
        drawn = [one for one in candidates if scores[one.name] > 0] or list(candidates)
        ordered = sorted(drawn, key=lambda one: (not one.is_ready, -scores[one.name]))
        reason = f"by the {self._by}" if sticky else f"by the request: it has no {self._by}"
        return Decision([one.name for one in ordered], reason, scores)

    def _sticky(self, request: RoutedRequest) -> str:
        if self._by == "key":
            return request.key_id
        if self._by == "conversation":
            return request.conversation
        # Without keys all requests are of the default tenant.
        return request.tenant if request.key_id else ""

    def _draw(self, key: str, target: str) -> float:
        weight = self._weights.get(target, 1.0)
        if weight == 0:
            return 0.0
        text = "\0".join((self._route, target, key))
        digest = blake2b(text.encode(), digest_size=_HASH_BYTES).digest()
        # Uniform in (0, 1), without its ends, of which one has no logarithm.
        uniform = (int.from_bytes(digest) + 0.5) / 2 ** (8 * _HASH_BYTES)
        return weight / -math.log(min(uniform, 1 - 2**-53))
