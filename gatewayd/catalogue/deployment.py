"""A deployment: two versions of one model side by side, and what their answers have shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from gatewayd.catalogue.route import ModelRoute
from gatewayd.catalogue.target import ModelTarget
from gatewayd.config.slo import SloTable
from gatewayd.metrics.routes import RouteCollector
from gatewayd.metrics.slo import ALL, judge
from gatewayd.plugins.model_router import FencedModelRouter
from gatewayd.tracing.latency_record import LatencyRecord
from gatewayd.tracing.route_record import ABANDONED, ANSWERED
from gatewayd_hooks.scheduling import Priority
from gatewayd_hooks.targets.model_routing import (
    CONTEXT,
    OVERLOADED,
    UNSUPPORTED,
    CandidateView,
    Decision,
    RoutedRequest,
)

_BLAMELESS = (ANSWERED, ABANDONED, CONTEXT, UNSUPPORTED, OVERLOADED)
"""Outcomes of attempts that say nothing against a version; a full queue shows in its SLOs."""


class RollbackRule(msgspec.Struct, frozen=True, kw_only=True):
    """When a version is rolled back without an operator.

    Attributes:
        most_errors: maximum share of its requests that fail; None for any.
        least_goodput: minimum share of its requests that meet all SLOs of their class; None for
            any.
        least_requests: its requests before it is judged.
    """

    most_errors: float | None = 0.05
    least_goodput: float | None = None
    least_requests: int = 50


@dataclass(slots=True)
class VersionFigures:
    """Requests of one version since its deployment.

    Attributes:
        requests: attempts at it.
        errors: attempts that failed by its fault, and answers that broke off.
        judged: requests that their SLOs judge.
        good: of these, met all SLOs of their class.
    """

    requests: int = 0
    errors: int = 0
    judged: int = 0
    good: int = 0

    def breach(self, rule: RollbackRule) -> str:
        """Return why a rule is broken, in a sentence; empty if it is kept."""
        if self.requests < rule.least_requests:
            return ""
        errors = self.errors / max(1, self.requests)
        if rule.most_errors is not None and errors > rule.most_errors:
            return f"{self.errors} of {self.requests} requests failed"
        if rule.least_goodput is not None and self.judged >= rule.least_requests:
            goodput = self.good / self.judged
            if goodput < rule.least_goodput:
                return f"{self.good} of {self.judged} requests met their SLOs"
        return ""


@dataclass(slots=True)
class ShadowFigures:
    """Copies of requests that were sent to a version, and whose answers were only compared.

    Attributes:
        compared: answers to requests without randomness.
        equal: of these, the same text.
        sampled: answers to requests that draw, whose text need not be the same.
        failed: copies without an answer.
        dropped: copies that were not sent, as too many others waited.
        common: sum of the shares of text that compared answers begin with alike.
    """

    compared: int = 0
    equal: int = 0
    sampled: int = 0
    failed: int = 0
    dropped: int = 0
    common: float = 0.0


class AttemptCounter(RouteCollector):
    """Counts attempts for a deployment, and in the collector of all routes.

    Args:
        shared: collector of all routes.
        figures: of each version, by the name of its target.
    """

    def __init__(self, shared: RouteCollector, figures: dict[str, VersionFigures]) -> None:
        super().__init__()
        self._shared = shared
        self._figures = figures

    def attempted(self, route: str, target: str, outcome: str) -> None:
        """See ``RouteCollector``."""
        self._shared.attempted(route, target, outcome)
        figures = self._figures[target]
        figures.requests += 1
        figures.errors += outcome not in _BLAMELESS


class VersionRouter(FencedModelRouter):
    """Chooses a version; what fails at the one on trial goes to the present one, not vice versa.

    Attributes:
        stable: name of the present version's target.
    """

    stable = ""

    def route(self, request: RoutedRequest, candidates: Sequence[CandidateView]) -> Decision:
        """See ``FencedModelRouter``."""
        decision = super().route(request, candidates)
        order = list(decision.order)
        last = order.index(self.stable) if self.stable in order else len(order)
        return replace(decision, order=order[: last + 1])


@dataclass(frozen=True, eq=False, kw_only=True)
class Deployment:
    """Two versions of a model: the present one, and one on trial.

    Attributes:
        stable: the present version; its names are those of the model.
        version: the one on trial, which requests reach by the split alone.
        weight: share of the requests that go to it.
        by: what keeps requests at one version: ``key``, ``tenant`` or ``conversation``.
        shadow: share of the other requests that are copied to it.
        rule: when it is rolled back.
        split: the route between the two.
        figures: of each version, by the name of its target.
        shadowed: of the copies.
    """

    stable: ModelTarget
    version: ModelTarget
    weight: float
    by: str
    shadow: float
    rule: RollbackRule
    split: ModelRoute
    figures: dict[str, VersionFigures]
    shadowed: ShadowFigures

    @property
    def name(self) -> str:
        """The model's name."""
        return self.stable.name

    @property
    def breach(self) -> str:
        """Why the version is to be rolled back; empty if it is not."""
        return self.figures[self.version.name].breach(self.rule)

    def judge_by(self, table: Callable[[], SloTable]) -> Callable[[], None]:
        """Judge the ended requests of both versions; return what ends that.

        Args:
            table: returns the present SLO targets.
        """
        ends = [
            target.metrics.listen(_listener(self.figures[target.name], table))
            for target in (self.stable, self.version)
        ]

        def end() -> None:
            for one in ends:
                one()

        return end


def _listener(
    figures: VersionFigures, table: Callable[[], SloTable]
) -> Callable[[LatencyRecord], None]:
    def listen(record: LatencyRecord) -> None:
        # Failures before the first output are attempts of the split, and have no record here.
        if record.outcome == "error" and record.first is not None:
            figures.errors += 1
        targets = getattr(table(), Priority(record.priority).name.lower())
        if (is_good := judge(record, targets).get(ALL)) is not None:
            figures.judged += 1
            figures.good += is_good

    return listen
