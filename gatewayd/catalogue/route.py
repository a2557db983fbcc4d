"""Routes: names that stand for several targets, of which a model router chooses one per request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gatewayd.catalogue.target import ModelTarget, Target
from gatewayd.metrics.routes import RouteCollector
from gatewayd.pipeline.work import Work
from gatewayd.plugins.model_router import FencedModelRouter
from gatewayd_hooks.targets.model_routing import CandidateView


class CandidateFacts(NamedTuple):
    """Facts about a target that the configuration states.

    Attributes:
        input_price: of a million prompt tokens.
        output_price: of a million generated tokens.
        quality: 0 to 1.
    """

    input_price: float | None = None
    output_price: float | None = None
    quality: float | None = None


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ModelRoute:
    """A name with its targets and the router between them.

    Attributes:
        name: that requests use.
        targets: names of targets, in the configured order.
        router: chooses among them.
        facts: of targets that have any, by name.
        metrics: counts the attempts.
        versions: the present version of a model and the one on trial, if it splits its requests:
            they are charged by the requested name. Empty for a route between models.
        shadow: takes a request that goes to the target of the route's own name, and returns what
            makes it keep its answer, to be compared; None if it does not. None for no request.
    """

    name: str
    targets: tuple[str, ...]
    router: FencedModelRouter
    facts: Mapping[str, CandidateFacts] = field(default_factory=dict)
    metrics: RouteCollector = field(default_factory=RouteCollector)
    versions: tuple[Target, ...] = ()
    shadow: Callable[[Any], Callable[[Work], Work] | None] | None = None

    def candidates(self, served: Sequence[tuple[str, Target]]) -> list[CandidateView]:
        """Describe targets as they are now.

        Args:
            served: the route's targets that are served, with the names that it has for them.
        """
        return [_view(name, target, self.facts.get(name, _NONE)) for name, target in served]


_NONE = CandidateFacts()


def _view(name: str, target: Target, facts: CandidateFacts) -> CandidateView:
    room = target.fleet.room
    return CandidateView(
        name=name,
        is_local=isinstance(target, ModelTarget),
        is_ready=target.fleet.is_ready,
        queue_seconds=room.reset_seconds,
        has_room=room.remaining_requests > 0 and room.remaining_tokens > 0,
        input_price=facts.input_price,
        output_price=facts.output_price,
        quality=facts.quality,
        context_length=target.max_model_len,
    )
