"""The strategies of one engine: loaded by name, bound into a step plan, replaced after faults."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from gatewayd_engine.config import EngineConfig, StrategyChoice
from gatewayd_engine.processing import Processors
from gatewayd_hooks.caching import PrefixCacheStrategy
from gatewayd_hooks.fence import Fence
from gatewayd_hooks.loading import PluginHost
from gatewayd_hooks.plan import StepPlan, bind
from gatewayd_hooks.preemption import PreemptionStrategy
from gatewayd_hooks.resources import EngineResources
from gatewayd_hooks.scheduling import SchedulerStrategy
from gatewayd_hooks.strategy import Kind

_log = logging.getLogger(__name__)

DEFAULTS: Mapping[Kind, StrategyChoice | None] = {
    Kind.SCHEDULER: StrategyChoice("fcfs"),
    Kind.EVICTION: StrategyChoice("lru"),
    Kind.PREEMPTION: StrategyChoice("recompute"),
    Kind.PREFIX_CACHE: None,
    Kind.DRAFTER: None,
    Kind.SPEC_CONTROLLER: StrategyChoice("adaptive"),
}
"""What takes over from a strategy that fails; without a prefix cache all is computed, and
without a drafter one token after the other."""


class Strategies:
    """What an engine decides with.

    Attributes:
        plan: bound methods of what fills each slot now; replaced as a whole.
        bound: the strategies themselves, by kind.
        processors: the chain of logits processors.
        num_faults: since the start.
    """

    def __init__(self, config: EngineConfig, host: PluginHost, resources: EngineResources) -> None:
        self._host = host
        self._resources = resources
        self._choices: dict[Kind, StrategyChoice | None] = {
            Kind.SCHEDULER: config.scheduler,
            Kind.EVICTION: config.eviction,
            Kind.PREEMPTION: config.preemption,
            Kind.PREFIX_CACHE: config.prefix_cache,
            Kind.DRAFTER: config.drafter,
            Kind.SPEC_CONTROLLER: config.spec_controller,
        }
        self._now = dict(self._choices)
        self._fence = Fence(config.fault_limit)
        self._retries: set[Kind] = set()
        self.num_faults = 0
        self.bound: dict[Kind, Any] = {}
        for kind, choice in self._choices.items():
            if choice is not None:
                self.bound[kind] = self._open(kind, choice)
        self._chain = [
            self._open(Kind.LOGITS_PROCESSOR, choice) for choice in config.logits_processors
        ]
        self.plan: StepPlan = self._bind()
        self.processors = Processors(
            [choice.name for choice in config.logits_processors],
            self.plan.processors,
            resources.max_running,
            partial(self._record, Kind.LOGITS_PROCESSOR),
        )

    @property
    def names(self) -> dict[str, str]:
        """Kind to name of what was configured and is not quarantined."""
        return {
            kind.value: choice.name for kind, choice in self._choices.items() if choice is not None
        }

    def _open(self, kind: Kind, choice: StrategyChoice) -> Any:  # noqa: ANN401 - any kind
        strategy = self._host.strategy(kind, choice.name, choice.settings)
        try:
            strategy.open(self._resources)
        except BaseException:
            strategy.close()
            raise
        return strategy

    def _bind(self) -> StepPlan:
        scheduler: SchedulerStrategy = self.bound[Kind.SCHEDULER]
        preemption: PreemptionStrategy = self.bound[Kind.PREEMPTION]
        prefix_cache: PrefixCacheStrategy[Any] | None = self.bound.get(Kind.PREFIX_CACHE)
        return bind(
            scheduler=scheduler,
            prefix_cache=prefix_cache,
            eviction=self.bound[Kind.EVICTION],
            preemption=preemption,
            processors=self._chain,
        )

    def fall_back(self, kind: Kind) -> None:
        """Count a fault of a kind's strategy and let the default take its place."""
        choice = self._choices[kind]
        if self._record(kind, "default" if choice is None else choice.name):
            self._choices[kind] = DEFAULTS[kind]
        else:
            self._retries.add(kind)
        self._replace(kind, DEFAULTS[kind])

    def _record(self, kind: Kind, name: str) -> bool:
        """Count a fault; whether the strategy is to be quarantined now."""
        self.num_faults += 1
        is_last = self._fence.record(kind, name)
        if is_last:
            _log.error("%s strategy %s is quarantined: too many faults", kind, name)
        return is_last

    def take_retries(self) -> set[Kind]:
        """Kinds whose configured strategy may come back now."""
        retries, self._retries = self._retries, set()
        return retries

    def bind_configured(self, kind: Kind) -> None:
        """Let a fresh instance of the configured strategy fill its slot again."""
        self._replace(kind, self._choices[kind])

    def renew_eviction(self) -> None:
        """A fresh instance of what evicts now, which knows no page."""
        current = self._now[Kind.EVICTION]
        self._replace(Kind.EVICTION, current)

    def _replace(self, kind: Kind, choice: StrategyChoice | None) -> None:
        new = None if choice is None else self._open(kind, choice)
        old = self.bound.pop(kind, None)
        self._now[kind] = choice
        if new is not None:
            self.bound[kind] = new
        if old is not None:
            self._close(kind, old)
        self.plan = self._bind()

    def _close(self, kind: Kind, strategy: Any) -> None:  # noqa: ANN401 - any kind
        try:
            strategy.close()
        except Exception as error:  # noqa: BLE001 - it is gone anyway
            _log.warning("%s strategy failed while closing: %r", kind, error)

    def close(self) -> None:
        """Close everything."""
        for kind, strategy in self.bound.items():
            self._close(kind, strategy)
        for processor in self._chain:
            self._close(Kind.LOGITS_PROCESSOR, processor)
