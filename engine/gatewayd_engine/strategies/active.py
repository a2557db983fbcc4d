"""The strategies of one engine: loaded by name, bound into a step plan, replaced after faults."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from gatewayd_engine.kv.codec import chosen_codec
from gatewayd_engine.kv.tiers.chain import TierChain
from gatewayd_engine.kv.tiers.fingerprint import fingerprint, form_name
from gatewayd_engine.model.linears.plugin_matmul import MatmulPlugin
from gatewayd_engine.process.config import FIXED_KINDS, EngineConfig, StrategyChoice
from gatewayd_engine.process.messages import StrategyRow
from gatewayd_engine.process.plugin_faults import StrategyFault, tell_fault
from gatewayd_engine.process.plugin_opener import Opener, close
from gatewayd_engine.sampling.guides.processors import GuidedProcessors
from gatewayd_engine.sampling.guides.slot import GuideSlot
from gatewayd_engine.sampling.processor_chain import ProcessorChain
from gatewayd_hooks.caching import PrefixCacheStrategy
from gatewayd_hooks.host.budgets import Overrun
from gatewayd_hooks.host.fence import Fence
from gatewayd_hooks.host.ledger import Ledger
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.host.plan import StepPlan, bind
from gatewayd_hooks.kv_codecs import KvCodecStrategy
from gatewayd_hooks.kv_compression import Compacts
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
    Kind.KV_COMPRESSION: None,
}
"""What takes over from a strategy that fails; without a prefix cache all is computed, without a
drafter one token after the other, and without KV compression all is attended to."""


class Strategies:
    """What an engine decides with.

    Attributes:
        plan: bound methods of what fills each slot now; replaced as a whole.
        bound: the strategies themselves, by kind.
        watched: the same with their calls timed and fenced: what to call.
        chain: the logits processors of requests that come now.
        processors: they, those of running requests, and who wants which; behind them the guide.
        guides: compiles what answers must follow.
        tiers: the KV tiers.
        codec: writes keys and values; None where they are kept as they are.
        identify: what tells this engine from those that compute other bits.
        opener: makes them ready.
        ledger: what each has cost.
        can_compress: whether attention can do with less than all keys and values.
        num_faults: since the start.
    """

    def __init__(
        self,
        config: EngineConfig,
        host: PluginHost,
        resources: EngineResources,
        ledger: Ledger,
        fixed: Mapping[Kind, Any],
        matmul_plugins: Iterable[MatmulPlugin] = (),
    ) -> None:
        """Open what the configuration names.

        Args:
            config: of the engine.
            host: loads plugins.
            resources: what strategies are given.
            ledger: where all of them are accounted for.
            fixed: what has loaded the model, open and watched, by kind.
            matmul_plugins: what multiplies some of its matrices.

        Raises:
            Exception: whatever is wrong with one of them.
        """
        self.ledger = ledger
        self._fixed = {kind: (config.choices(kind)[0].name, one) for kind, one in fixed.items()}
        self._matmul_plugins = tuple(matmul_plugins)
        self.opener = Opener(host, resources, self.ledger, config.load_seconds)
        self._choices: dict[Kind, StrategyChoice | None] = {
            kind: getattr(config, kind.value) for kind in DEFAULTS
        }
        self.can_compress = config.device == "cpu"
        self._owner = host.owner
        self._fence = Fence(config.fault_limit)
        for kind, choice in self._choices.items():
            if choice is not None and [kind, choice.name] in config.quarantined:
                self._fence.exclude(kind, choice.name)
                self._choices[kind] = DEFAULTS[kind]
        self._now = dict(self._choices)
        self._retries: set[Kind] = set()
        self._resting: dict[Kind, Any] = {}
        self.num_faults = 0
        self.bound: dict[Kind, Any] = {}
        self.watched: dict[Kind, Any] = {}
        for kind, choice in self._choices.items():
            if choice is not None:
                self._seat(kind, choice, self.opener.open(kind, choice))
        self._codec = chosen_codec(config)
        self.codec: KvCodecStrategy | None = None
        forms = [
            f"{form_name(host, kind, choice)} but {config.quantizer_skip}"
            for kind in fixed
            for choice in config.choices(kind)
        ]
        open_names = {name for name, _ in self._matmul_plugins}
        forms += [
            f"multiplied by {form_name(host, Kind.QUANTIZER, choice)}"
            for choice in config.quantizer_kernels
            if choice.name in open_names
        ]
        if self._codec is not None:
            kind = Kind.KV_CODEC
            strategy = self.opener.open(kind, self._codec)
            self.codec = self.ledger.watch(kind, self._codec.name, strategy)
            forms.append(form_name(host, kind, self._codec))
        self.identify = partial(fingerprint, config, *forms)
        kind = Kind.KV_TIER
        self.tiers = TierChain(
            [one for one in config.kv_tiers if [kind, one.name] not in config.quarantined],
            partial(self.opener.open, kind),
            partial(close, kind),
            partial(self._record, kind),
            self.ledger,
            resources.page_bytes,
        )
        kind = Kind.LOGITS_PROCESSOR
        self.chain = ProcessorChain(
            config.logits_processors,
            partial(self.opener.open, kind),
            partial(close, kind),
            self._fence,
            self.ledger,
        )
        self.plan: StepPlan = self._bind()
        guide = config.guide
        is_out = guide is not None and [Kind.GUIDE, guide.name] in config.quarantined
        self.guides = GuideSlot(
            None if is_out else guide,
            partial(self.opener.open, Kind.GUIDE),
            partial(self._record, Kind.GUIDE),
            self.ledger,
            config.guide_limits,
            resources,
            config.strategy_hang_seconds,
        )
        self.processors = GuidedProcessors(
            self.chain.names,
            self.plan.processors,
            resources.max_running,
            partial(self._record, kind),
            self.guides.matchers,
        )
        for kind_name, name in config.quarantined:
            self._fence.exclude(kind_name, name)
            if kind_name == Kind.LOGITS_PROCESSOR:
                self.processors.quarantine(name)

    @property
    def compacts(self) -> Compacts | None:
        """What lets few keys and values stand for many now; None if nothing does."""
        found = self.bound.get(Kind.KV_COMPRESSION)
        if found is None or not isinstance(found, Compacts):
            return None
        watched: Compacts = self.watched[Kind.KV_COMPRESSION]
        return watched

    @property
    def names(self) -> dict[str, str]:
        """Kind to name of what was configured and is not quarantined."""
        names = {
            kind.value: choice.name for kind, choice in self._choices.items() if choice is not None
        }
        if self.guides.choice is not None:
            names[Kind.GUIDE.value] = self.guides.choice.name
        if self._codec is not None:
            names[Kind.KV_CODEC.value] = self._codec.name
        return names | {kind.value: name for kind, (name, _) in self._fixed.items()}

    def report(self) -> list[StrategyRow]:
        """Every strategy that was used so far, with its state and what it has cost."""
        rows = []
        in_use = {(kind, choice.name) for kind, choice in self._now.items() if choice is not None}
        in_use |= {(Kind.LOGITS_PROCESSOR, name) for name in self.chain.names}
        in_use |= {(Kind.KV_TIER, name) for name in self.tiers.names}
        in_use |= {(kind, name) for kind, (name, _) in self._fixed.items()}
        in_use |= {(Kind.QUANTIZER, name) for name, _ in self._matmul_plugins}
        if self.guides.choice is not None:
            in_use.add((Kind.GUIDE, self.guides.choice.name))
        if self._codec is not None:
            in_use.add((Kind.KV_CODEC, self._codec.name))
        for (kind, name), cost in self.ledger.costs().items():
            state = "active" if (kind, name) in in_use else "replaced"
            if self._fence.is_quarantined(kind, name):
                state = "quarantined"
            faults = self._fence.faults(kind, name)
            rows.append(
                StrategyRow(kind.value, name, state, faults, cost.calls, cost.seconds, cost.longest)
            )
        return rows

    def _bind(self) -> StepPlan:
        scheduler: SchedulerStrategy = self.watched[Kind.SCHEDULER]
        preemption: PreemptionStrategy = self.watched[Kind.PREEMPTION]
        prefix_cache: PrefixCacheStrategy[Any] | None = self.watched.get(Kind.PREFIX_CACHE)
        return bind(
            scheduler=scheduler,
            prefix_cache=prefix_cache,
            eviction=self.watched[Kind.EVICTION],
            preemption=preemption,
            processors=self.chain.watched,
        )

    def fall_back(self, kind: Kind, error: BaseException) -> None:
        """Count a fault of a kind's strategy and let the default take its place.

        One that comes back is closed only then, for the model it has loaded serves the fresh one.
        """
        choice = self._choices[kind]
        if self._record(kind, "default" if choice is None else choice.name, error):
            self._choices[kind] = DEFAULTS[kind]
            self._retries.discard(kind)
            self.close_one(kind, self._resting.pop(kind, None))
        else:
            self._retries.add(kind)
        old = self._exchange(kind, DEFAULTS[kind])
        if kind in self._retries and kind not in self._resting:
            self._resting[kind] = old
        else:
            self.close_one(kind, old)

    def _record(self, kind: Kind, name: str, error: BaseException) -> bool:
        """Count a fault; whether the strategy is to be quarantined now."""
        self.num_faults += 1
        is_last = self._fence.record(kind, name)
        who = f"{kind}.{name} ({self._owner(kind, name)})"
        count = self._fence.faults(kind, name)
        tell_fault(who, error, self.bound.get(kind), count, self._fence.limit)
        return is_last

    def to_leave_out(self, error: BaseException) -> list[str]:
        """Kind and name of the strategy that the next engine had better start without.

        One whose place no default can take ended this one; empty if it was nobody.
        """
        if not isinstance(error, StrategyFault) or error.kind not in FIXED_KINDS:
            return []
        return [error.kind.value, error.name or self.names[error.kind.value]]

    def take_retries(self) -> set[Kind]:
        """Kinds whose configured strategy may come back now."""
        retries, self._retries = self._retries, set()
        return retries

    def bind_configured(self, kind: Kind) -> None:
        """Let a fresh instance of the configured strategy fill its slot again."""
        try:
            self._replace(kind, self._choices[kind])
        finally:
            self.close_one(kind, self._resting.pop(kind, None))

    def renew_eviction(self) -> None:
        """A fresh instance of what evicts now, which knows no page."""
        current = self._now[Kind.EVICTION]
        self._replace(Kind.EVICTION, current)

    # Swaps, by whoever operates the engine

    def open(self, kind: Kind, choice: StrategyChoice | None) -> Any:  # noqa: ANN401 - any kind
        """A strategy that fills no slot yet; None for none.

        Raises:
            Exception: whatever is wrong with it.
        """
        return None if choice is None else self.opener.open(kind, choice)

    def put(self, kind: Kind, choice: StrategyChoice | None, strategy: Any) -> Any:  # noqa: ANN401
        """Let an open strategy fill its slot from now on; what was counted against it is over.

        Returns:
            The one before, watched and still open.
        """
        old = self.watched.get(kind)
        self._choices[kind] = choice
        self._retries.discard(kind)
        self.close_one(kind, self._resting.pop(kind, None))
        if choice is not None:
            self._fence.forgive(kind, choice.name)
        self._seat(kind, choice, strategy)
        self.plan = self._bind()
        return old

    def choose_again(self, kind: Kind, choice: StrategyChoice | None) -> None:
        """Let a strategy come back before the next step."""
        self._choices[kind] = choice
        self._retries.add(kind)

    def chosen(self, kind: Kind) -> StrategyChoice | None:
        """What was chosen to fill a slot, and comes back after faults."""
        return self._choices[kind]

    def put_chain(
        self, choices: Sequence[StrategyChoice], open_: Callable[[StrategyChoice], Any]
    ) -> None:
        """Another chain of logits processors for requests that come from now on.

        Args:
            choices: all of it; those that stay as they were keep what they know.
            open_: gives the others.

        Raises:
            Exception: whatever is wrong with one of them; nothing has changed then.
        """
        self.chain.replace(choices, open_)
        self.plan = self._bind()
        self.processors.replace(self.chain.names, self.plan.processors)
        self.chain.close_replaced(self.processors)

    def put_guide(self, choice: StrategyChoice | None, strategy: Any) -> None:  # noqa: ANN401
        """Another guide, open, for grammars that are asked for from now on."""
        if choice is not None:
            self._fence.forgive(Kind.GUIDE, choice.name)
        self.guides.replace(choice, strategy)

    def close_one(self, kind: Kind, watched: Any) -> None:  # noqa: ANN401 - any kind
        """Close a strategy that fills no slot; None for none."""
        if watched is not None:
            close(kind, watched)

    # Budgets

    def take_overruns(self) -> list[Overrun]:
        """Slow strategies that were in use in the last step and are; processors are counted here.

        A default is none of them: what should take its place?
        """
        overruns = []
        self.ledger.settle_step()
        for overrun in self.ledger.take_overruns():
            default = DEFAULTS.get(overrun.kind)
            if default is not None and default.name == overrun.name:
                _log.warning("default strategy exceeded its budget: %s", overrun.reason)
                continue
            now = self._now.get(overrun.kind)
            if overrun.kind is Kind.LOGITS_PROCESSOR:
                fault = StrategyFault(overrun.kind, overrun.reason)
                if self._record(overrun.kind, overrun.name, fault):
                    self.processors.quarantine(overrun.name)
            elif overrun.kind is Kind.KV_TIER:
                self.tiers.fail(overrun.name, overrun.reason)
            elif now is not None and now.name == overrun.name:
                overruns.append(overrun)
        return overruns

    def _replace(self, kind: Kind, choice: StrategyChoice | None) -> None:
        self.close_one(kind, self._exchange(kind, choice))

    def _exchange(self, kind: Kind, choice: StrategyChoice | None) -> Any:  # noqa: ANN401
        """Fill a slot; what filled it before, watched and still open."""
        new = self.open(kind, choice)
        old = self.watched.get(kind)
        self._seat(kind, choice, new)
        self.plan = self._bind()
        return old

    def _seat(self, kind: Kind, choice: StrategyChoice | None, strategy: Any) -> None:  # noqa: ANN401
        self._now[kind] = choice
        if choice is None:
            self.bound.pop(kind, None)
            self.watched.pop(kind, None)
        else:
            self.bound[kind] = strategy
            self.watched[kind] = self.ledger.watch(kind, choice.name, strategy)

    def close(self) -> None:
        """Close everything."""
        self.tiers.close()
        for kind, watched in (*self.watched.items(), *self._resting.items()):
            self.close_one(kind, watched)
        self.chain.close()
        self.guides.close()
        self.close_one(Kind.KV_CODEC, self.codec)
        for kind, (_, watched) in self._fixed.items():
            self.close_one(kind, watched)
        for _, watched in self._matmul_plugins:
            self.close_one(Kind.QUANTIZER, watched)
