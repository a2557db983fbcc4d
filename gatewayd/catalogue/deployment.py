"""A deployment: two versions of one model side by side, and what their answers have shown."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from gatewayd.catalogue.target import ModelTarget
from gatewayd.config.slo import SloTable
from gatewayd.errors import EngineLost, GatewayError, NumericalError
from gatewayd.metrics.routes import RouteCollector
from gatewayd.metrics.slo import ALL, judge
from gatewayd.plugins.model_router import FencedModelRouter
from gatewayd.tracing.latency_record import LatencyRecord
from gatewayd.tracing.route_record import ABANDONED, ANSWERED
from gatewayd_hooks.scheduling import Priority
from gatewayd_hooks.targets.model_routing import (
    LOST,
    NUMERICAL,
    CandidateView,
    Decision,
    RoutedRequest,
)

_FAULTS = (LOST, NUMERICAL, GatewayError.code)
"""Outcomes of attempts that are a version's fault; others are of clients and operators."""
_FAULT_CODES = (EngineLost.code, NumericalError.code, GatewayError.code)
_LEAST_WINDOW = 200


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

    @property
    def window(self) -> int:
        """Number of latest requests by which it is judged."""
        return max(_LEAST_WINDOW, self.least_requests)


@dataclass(slots=True)
class VersionFigures:
    """Requests of one version since its deployment.

    Attributes:
        window: number of latest requests by which it is judged.
        requests: that it answered, or failed by its fault.
        errors: of these, failed, or answers that broke off.
        judged: requests that their SLOs judge.
        good: of these, met all SLOs of their class.
    """

    window: int = _LEAST_WINDOW
    requests: int = 0
    errors: int = 0
    judged: int = 0
    good: int = 0
    _failed: deque[bool] = field(init=False)
    _good: deque[bool] = field(init=False)

    def __post_init__(self) -> None:
        self._failed, self._good = deque(maxlen=self.window), deque(maxlen=self.window)

    def answered(self) -> None:
        """Count a request that it answers, or whose answer it has begun."""
        self.requests += 1
        self._failed.append(False)

    def failed(self, *, had_begun: bool = False) -> None:
        """Count a failure; of an answer that had begun, its request is counted already."""
        self.requests += not had_begun
        self.errors += 1
        self._failed.append(True)

    def judge(self, *, is_good: bool) -> None:
        """Count whether a request met its SLOs."""
        self.judged += 1
        self.good += is_good
        self._good.append(is_good)

    def breach(self, rule: RollbackRule) -> str:
        """Return why a rule is broken by the latest requests, in words; empty if it is kept."""
        count, errors = len(self._failed), sum(self._failed)
        is_known = count >= rule.least_requests
        if is_known and rule.most_errors is not None and errors > rule.most_errors * count:
            return f"{errors} of the latest {count} requests failed"
        count, good = len(self._good), sum(self._good)
        is_known = count >= rule.least_requests
        if is_known and rule.least_goodput is not None and good < rule.least_goodput * count:
            return f"{good} of the latest {count} requests met their SLOs"
        return ""


@dataclass(slots=True)
class ShadowFigures:
    """Copies of requests that were sent to a version, and whose answers were only compared.

    Attributes:
        compared: answers to requests without randomness.
        equal: of these, the same text.
        sampled: answers to requests that draw, whose text need not be the same.
        failed: copies without an answer.
        dropped: copies that were not sent, as too many others waited or the version is not loaded.
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
        if outcome in (ANSWERED, ABANDONED):
            self._figures[target].answered()
        elif outcome in _FAULTS:
            self._figures[target].failed()


class VersionRouter(FencedModelRouter):
    """Chooses a version by what the split draws; what fails at the one on trial goes to the other.

    The present version answers alone while the other is not loaded, and never leaves a request to
    it: a conversation does not go back and forth because an engine restarts.

    Attributes:
        stable: name of the present version's target.
        is_loaded: whether the version on trial is loaded.
    """

    stable = ""
    is_loaded: Callable[[], bool]

    def route(self, request: RoutedRequest, candidates: Sequence[CandidateView]) -> Decision:
        """See ``FencedModelRouter``."""
        decision = super().route(request, candidates)
        scores = decision.scores
        other = next(one.name for one in candidates if one.name != self.stable)
        is_chosen = scores.get(other, 0.0) > scores.get(self.stable, 0.0)
        if is_chosen and self.is_loaded():
            return Decision([other, self.stable], decision.reason, scores)
        reason = "the version on trial is not loaded" if is_chosen else decision.reason
        return Decision([self.stable], reason, scores)


@dataclass(frozen=True, eq=False, kw_only=True)
class Deployment:
    """Two versions of a model: the present one, and one on trial.

    Attributes:
        stable: the present version; its names are those of the model.
        version: the one on trial, which requests reach by the split alone.
        rule: when it is rolled back.
        figures: of each version, by the name of its target.
        shadowed: of the copies.
    """

    stable: ModelTarget
    version: ModelTarget
    rule: RollbackRule
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
        if record.outcome == "error":
            route, why = record.route, record.why
            if why is None or why.code not in _FAULT_CODES:
                return  # the client's, or an operator's: neither do its SLOs count
            # Failures before the first output are attempts of the split, counted as such.
            if route is not None and route.attempts and route.attempts[-1].outcome == ANSWERED:
                figures.failed(had_begun=True)
        targets = getattr(table(), Priority(record.priority).name.lower())
        if (is_good := judge(record, targets).get(ALL)) is not None:
            figures.judge(is_good=is_good)

    return listen
