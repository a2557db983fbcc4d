"""Kinds of strategies: the registration hook and the Protocol of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gatewayd_hooks.admission import AdmissionStrategy
from gatewayd_hooks.caching import EvictionStrategy, PrefixCacheStrategy
from gatewayd_hooks.execution import ExecutorStrategy
from gatewayd_hooks.guiding import GuideStrategy
from gatewayd_hooks.kv_codecs import KvCodecStrategy
from gatewayd_hooks.kv_compression import KvCompressionStrategy
from gatewayd_hooks.kv_tiers import KvTierStrategy
from gatewayd_hooks.logits import LogitsProcessor
from gatewayd_hooks.model_backends import ModelBackendStrategy
from gatewayd_hooks.parsing import ReasoningParserStrategy, ToolParserStrategy
from gatewayd_hooks.preemption import PreemptionStrategy
from gatewayd_hooks.protocols import ProtocolStrategy
from gatewayd_hooks.quantization import QuantizerStrategy
from gatewayd_hooks.routing import RouterStrategy
from gatewayd_hooks.scheduling import SchedulerStrategy
from gatewayd_hooks.speculation import DrafterStrategy, SpecControllerStrategy
from gatewayd_hooks.strategy import Kind
from gatewayd_hooks.targets.model_routing import ModelRouterStrategy
from gatewayd_hooks.targets.residency import ResidencyStrategy
from gatewayd_hooks.upstreams import UpstreamStrategy


@dataclass(frozen=True, slots=True)
class KindSpec:
    """One kind of strategy.

    Attributes:
        hook: name of its registration hook.
        protocol: that its strategies implement.
    """

    hook: str
    protocol: type

    @property
    def methods(self) -> list[str]:
        """Names of the required methods of a strategy of this kind, sorted."""
        names = {
            name
            for base in self.protocol.__mro__
            # Optional parts are Protocols of their own, so all methods of these are required.
            if getattr(base, "_is_protocol", False)
            for name, value in vars(base).items()
            if callable(value) and (name == "__len__" or not name.startswith("_"))
        }
        return sorted(names)


KINDS: Mapping[Kind, KindSpec] = {
    Kind.SCHEDULER: KindSpec("gatewayd_schedulers", SchedulerStrategy),
    Kind.PREFIX_CACHE: KindSpec("gatewayd_prefix_caches", PrefixCacheStrategy),
    Kind.EVICTION: KindSpec("gatewayd_evictions", EvictionStrategy),
    Kind.PREEMPTION: KindSpec("gatewayd_preemptions", PreemptionStrategy),
    Kind.KV_TIER: KindSpec("gatewayd_kv_tiers", KvTierStrategy),
    Kind.KV_CODEC: KindSpec("gatewayd_kv_codecs", KvCodecStrategy),
    Kind.KV_COMPRESSION: KindSpec("gatewayd_kv_compressions", KvCompressionStrategy),
    Kind.QUANTIZER: KindSpec("gatewayd_quantizers", QuantizerStrategy),
    Kind.MODEL_BACKEND: KindSpec("gatewayd_model_backends", ModelBackendStrategy),
    Kind.LOGITS_PROCESSOR: KindSpec("gatewayd_logits_processors", LogitsProcessor),
    Kind.GUIDE: KindSpec("gatewayd_guides", GuideStrategy),
    Kind.DRAFTER: KindSpec("gatewayd_drafters", DrafterStrategy),
    Kind.SPEC_CONTROLLER: KindSpec("gatewayd_spec_controllers", SpecControllerStrategy),
    Kind.ADMISSION: KindSpec("gatewayd_admissions", AdmissionStrategy),
    Kind.ROUTER: KindSpec("gatewayd_routers", RouterStrategy),
    Kind.MODEL_ROUTER: KindSpec("gatewayd_model_routers", ModelRouterStrategy),
    Kind.EXECUTOR: KindSpec("gatewayd_executors", ExecutorStrategy),
    Kind.RESIDENCY: KindSpec("gatewayd_residencies", ResidencyStrategy),
    Kind.TOOL_PARSER: KindSpec("gatewayd_tool_parsers", ToolParserStrategy),
    Kind.REASONING_PARSER: KindSpec("gatewayd_reasoning_parsers", ReasoningParserStrategy),
    Kind.PROTOCOL: KindSpec("gatewayd_protocols", ProtocolStrategy),
    Kind.UPSTREAM: KindSpec("gatewayd_upstreams", UpstreamStrategy),
}
"""Every kind except observers and console plugins, which have hooks and no strategy."""
