"""The active strategies of an engine: loaded by name, bound to a step plan, replaced on faults."""

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
from gatewayd_engine.process.plugin_faults import StrategyFault, log_fault
from gatewayd_engine.process.plugin_opener import Opener, close
from gatewayd_engine.sampling.guides.active_guide import ActiveGuide
from gatewayd_engine.sampling.guides.processors import GuidedProcessors
from gatewayd_engine.sampling.processor_chain import ProcessorChain
from gatewayd_hooks.caching import PrefixCacheStrategy
from gatewayd_hooks.host.budgets import Overrun
from gatewayd_hooks.host.fence import Fence
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.host.plan import StepPlan, bind
from gatewayd_hooks.host.plugin_times import PluginTimes
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
"""Replacements of failed strategies; None disables the prefix cache, speculative decoding or KV
compression."""


class Strategies:
    """The active strategies of an engine.

    Attributes:
        plan: bound methods of the active strategies; replaced as a whole.
        bound: the strategies themselves, by kind.
        watched: proxies of them, whose calls are timed and fenced; use these for calls.
        chain: logits processors of new requests.
        processors: these, those of running requests, and which request uses which; then the guide.
        guides: compiles the grammars of requests.
        tiers: the KV tiers.
        codec: encodes keys and values; None if they are stored as computed.
        identify: returns the fingerprint of engines that compute bit-identical KV.
        opener: opens strategies.
        plugin_times: call times of each strategy.
        can_compress: whether attention supports KV compression.
        num_faults: number of faults since the start.
    """

    def __init__(
        self,
        config: EngineConfig,
        host: PluginHost,
        resources: EngineResources,
        plugin_times: PluginTimes,
        fixed: Mapping[Kind, Any],
        matmul_plugins: Iterable[MatmulPlugin] = (),
    ) -> None:
        """Open the configured strategies.

        Args:
            config: engine configuration.
            host: loads plugins.
            resources: passed to ``open`` of strategies.
            plugin_times: measures calls of all strategies.
            fixed: strategies that were needed to load the model, open and watched, by kind.
            matmul_plugins: quantizers that provide matmul kernels, by name.

        Raises:
            Exception: any error of one of them.
        """
        self.plugin_times = plugin_times
        self._fixed = {kind: (config.choices(kind)[0].name, one) for kind, one in fixed.items()}
        self._matmul_plugins = tuple(matmul_plugins)
        self.opener = Opener(host, resources, self.plugin_times, config.load_seconds)
        self._choices: dict[Kind, StrategyChoice | None] = {
            kind: getattr(config, kind.value) for kind in DEFAULTS
        }
        self.can_compress = config.device == "cpu"
        self._owner = host.owner
        self._fence = Fence(config.fault_limit)
        # Quarantined strategies are replaced before anything is opened.
        for kind, choice in self._choices.items():
            if choice is not None and [kind, choice.name] in config.quarantined:
                self._fence.exclude(kind, choice.name)
                self._choices[kind] = DEFAULTS[kind]
        self._active = dict(self._choices)
        self._retries: set[Kind] = set()
        self._standby: dict[Kind, Any] = {}
        self.num_faults = 0
        self.bound: dict[Kind, Any] = {}
        self.watched: dict[Kind, Any] = {}
        for kind, choice in self._choices.items():
            if choice is not None:
                self._set_active(kind, choice, self.opener.open(kind, choice))
        # The codec, and the fingerprint of everything that the pool's contents depend on.
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
            self.codec = self.plugin_times.watch(kind, self._codec.name, strategy)
            forms.append(form_name(host, kind, self._codec))
        self.identify = partial(fingerprint, config, *forms)
        kind = Kind.KV_TIER
        self.tiers = TierChain(
            [one for one in config.kv_tiers if [kind, one.name] not in config.quarantined],
            partial(self.opener.open, kind),
            partial(close, kind),
            partial(self._record, kind),
            self.plugin_times,
            resources.page_bytes,
        )
        kind = Kind.LOGITS_PROCESSOR
        self.chain = ProcessorChain(
            config.logits_processors,
            partial(self.opener.open, kind),
            partial(close, kind),
            self._fence,
            self.plugin_times,
        )
        self.plan: StepPlan = self._bind()
        # The guide, then the processors of rows, which need the chain and its matchers.
        guide = config.guide
        is_out = guide is not None and [Kind.GUIDE, guide.name] in config.quarantined
        self.guides = ActiveGuide(
            None if is_out else guide,
            partial(self.opener.open, Kind.GUIDE),
            partial(self._record, Kind.GUIDE),
            self.plugin_times,
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
        # Of all kinds. Logits processors stay in the chain, to refuse requests that need them.
        for kind_name, name in config.quarantined:
            self._fence.exclude(kind_name, name)
            if kind_name == Kind.LOGITS_PROCESSOR:
                self.processors.quarantine(name)

    @property
    def compacts(self) -> Compacts | None:
        """The KV compression that compacts prompts; None if there is none."""
        found = self.bound.get(Kind.KV_COMPRESSION)
        if found is None or not isinstance(found, Compacts):
            return None
        watched: Compacts = self.watched[Kind.KV_COMPRESSION]
        return watched

    @property
    def names(self) -> dict[str, str]:
        """Names of the configured strategies that are not quarantined, by kind."""
        names = {
            kind.value: choice.name for kind, choice in self._choices.items() if choice is not None
        }
        if self.guides.choice is not None:
            names[Kind.GUIDE.value] = self.guides.choice.name
        if self._codec is not None:
            names[Kind.KV_CODEC.value] = self._codec.name
        return names | {kind.value: name for kind, (name, _) in self._fixed.items()}

    def report(self) -> list[StrategyRow]:
        """Return statistics of every strategy used so far."""
        rows = []
        in_use = {
            (kind, choice.name) for kind, choice in self._active.items() if choice is not None
        }
        in_use |= {(Kind.LOGITS_PROCESSOR, name) for name in self.chain.names}
        in_use |= {(Kind.KV_TIER, name) for name in self.tiers.names}
        in_use |= {(kind, name) for kind, (name, _) in self._fixed.items()}
        in_use |= {(Kind.QUANTIZER, name) for name, _ in self._matmul_plugins}
        if self.guides.choice is not None:
            in_use.add((Kind.GUIDE, self.guides.choice.name))
        if self._codec is not None:
            in_use.add((Kind.KV_CODEC, self._codec.name))
        for (kind, name), cost in self.plugin_times.costs().items():
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
        """Count a fault of a kind's strategy, and replace it by the default.

        An instance to be retried is closed only on the retry, which reuses the model it has loaded.
        """
        choice = self._choices[kind]
        if self._record(kind, "default" if choice is None else choice.name, error):
            self._choices[kind] = DEFAULTS[kind]
            self._retries.discard(kind)
            self.close_one(kind, self._standby.pop(kind, None))
        else:
            self._retries.add(kind)
        old = self._exchange(kind, DEFAULTS[kind])
        # If the default has failed as well, the first failed instance remains on standby.
        if kind in self._retries and kind not in self._standby:
            self._standby[kind] = old
        else:
            self.close_one(kind, old)

    def _record(self, kind: Kind, name: str, error: BaseException) -> bool:
        """Count a fault; return whether the strategy is quarantined now."""
        self.num_faults += 1
        is_last = self._fence.record(kind, name)
        who = f"{kind}.{name} ({self._owner(kind, name)})"
        count = self._fence.faults(kind, name)
        log_fault(who, error, self.bound.get(kind), count, self._fence.limit)
        return is_last

    def to_quarantine(self, error: BaseException) -> list[str]:
        """Return kind and name of the strategy that the next engine should quarantine.

        This is a strategy without a default that has ended this engine; empty if there is none.
        """
        if not isinstance(error, StrategyFault) or error.kind not in FIXED_KINDS:
            return []
        return [error.kind.value, error.name or self.names[error.kind.value]]

    def drain_retries(self) -> set[Kind]:
        """Return and clear the kinds whose configured strategy is to be retried now."""
        retries, self._retries = self._retries, set()
        return retries

    def bind_configured(self, kind: Kind) -> None:
        """Activate a new instance of the configured strategy of a kind."""
        try:
            self._replace(kind, self._choices[kind])
        finally:
            # Only once the new instance is open, which may share the model loaded by this one.
            self.close_one(kind, self._standby.pop(kind, None))

    def reset(self, kind: Kind) -> None:
        """Replace the active strategy of a kind by a new instance without state."""
        self._replace(kind, self._active[kind])

    # Swaps by an operator

    def open(self, kind: Kind, choice: StrategyChoice | None) -> Any:  # noqa: ANN401 - any kind
        """Open a strategy without activating it; None for none.

        Raises:
            Exception: any error of the strategy.
        """
        return None if choice is None else self.opener.open(kind, choice)

    def install(self, kind: Kind, choice: StrategyChoice | None, strategy: Any) -> Any:  # noqa: ANN401
        """Activate an opened strategy, and reset its fault count.

        Returns:
            The previous one, watched and still open.
        """
        old = self.watched.get(kind)
        self._choices[kind] = choice
        # An operator's choice supersedes the retry of a failed strategy.
        self._retries.discard(kind)
        self.close_one(kind, self._standby.pop(kind, None))
        if choice is not None:
            self._fence.reset_faults(kind, choice.name)
        self._set_active(kind, choice, strategy)
        self.plan = self._bind()
        return old

    def schedule_retry(self, kind: Kind, choice: StrategyChoice | None) -> None:
        """Configure a strategy to be activated before the next step."""
        self._choices[kind] = choice
        self._retries.add(kind)

    def configured(self, kind: Kind) -> StrategyChoice | None:
        """Return the configured strategy of a kind, which is retried after faults."""
        return self._choices[kind]

    def replace_chain(
        self, choices: Sequence[StrategyChoice], open_: Callable[[StrategyChoice], Any]
    ) -> None:
        """Replace the chain of logits processors for new requests.

        Args:
            choices: the whole chain; processors with an unchanged choice keep their state.
            open_: returns the strategies of new ones.

        Raises:
            Exception: a new one cannot be opened; nothing has changed then.
        """
        self.chain.replace(choices, open_)
        self.plan = self._bind()
        self.processors.replace(self.chain.names, self.plan.processors)
        self.chain.close_replaced(self.processors)

    def replace_guide(self, choice: StrategyChoice | None, strategy: Any) -> None:  # noqa: ANN401
        """Replace the guide by an opened one, for new grammars."""
        if choice is not None:
            self._fence.reset_faults(Kind.GUIDE, choice.name)
        self.guides.replace(choice, strategy)

    def close_one(self, kind: Kind, watched: Any) -> None:  # noqa: ANN401 - any kind
        """Close a strategy that is not active; None is ignored."""
        if watched is not None:
            close(kind, watched)

    # Budgets

    def drain_overruns(self) -> list[Overrun]:
        """Return active strategies that exceeded their time budget; processors are handled here.

        Defaults are only logged, because they have no replacement.
        """
        overruns = []
        self.plugin_times.settle_step()
        for overrun in self.plugin_times.take_overruns():
            default = DEFAULTS.get(overrun.kind)
            if default is not None and default.name == overrun.name:
                _log.warning("default strategy exceeded its budget: %s", overrun.reason)
                continue
            now = self._active.get(overrun.kind)
            if overrun.kind is Kind.LOGITS_PROCESSOR:
                fault = StrategyFault(overrun.kind, overrun.reason)
                if self._record(overrun.kind, overrun.name, fault):
                    self.processors.quarantine(overrun.name)
            elif overrun.kind is Kind.KV_TIER:
                self.tiers.fail(overrun.name, overrun.reason)
            # Overruns of a strategy that has been replaced since are dropped.
            elif now is not None and now.name == overrun.name:
                overruns.append(overrun)
        return overruns

    def _replace(self, kind: Kind, choice: StrategyChoice | None) -> None:
        self.close_one(kind, self._exchange(kind, choice))

    def _exchange(self, kind: Kind, choice: StrategyChoice | None) -> Any:  # noqa: ANN401
        """Replace a kind's strategy; return the previous one, watched and still open."""
        new = self.open(kind, choice)
        old = self.watched.get(kind)
        self._set_active(kind, choice, new)
        self.plan = self._bind()
        return old

    def _set_active(self, kind: Kind, choice: StrategyChoice | None, strategy: Any) -> None:  # noqa: ANN401
        self._active[kind] = choice
        if choice is None:
            self.bound.pop(kind, None)
            self.watched.pop(kind, None)
        else:
            self.bound[kind] = strategy
            self.watched[kind] = self.plugin_times.watch(kind, choice.name, strategy)

    def close(self) -> None:
        """Close all strategies."""
        self.tiers.close()
        for kind, watched in (*self.watched.items(), *self._standby.items()):
            self.close_one(kind, watched)
        self.chain.close()
        self.guides.close()
        self.close_one(Kind.KV_CODEC, self.codec)
        for kind, (_, watched) in self._fixed.items():
            self.close_one(kind, watched)
        for _, watched in self._matmul_plugins:
            self.close_one(Kind.QUANTIZER, watched)
