"""All hook specifications, in the order of a process's life cycle.

Hooks register and observe; strategies do the work. Hooks are called when a process starts, when the
configuration changes, per admin action, and at a request's arrival and end: a call costs
microseconds, so none is made inside an engine step and none has "token" in its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gatewayd_hooks.markers import hookspec

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from gatewayd_hooks.admission import AdmissionStrategy
    from gatewayd_hooks.caching import EvictionStrategy, PrefixCacheStrategy
    from gatewayd_hooks.console import Action, Panel
    from gatewayd_hooks.events import DaemonInfo, RequestAdmitted, RequestFinished
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
    from gatewayd_hooks.strategy import StrategyInfo
    from gatewayd_hooks.targets.model_routing import ModelRouterStrategy
    from gatewayd_hooks.targets.residency import ResidencyStrategy
    from gatewayd_hooks.upstreams import UpstreamStrategy

# Registration: called once per process that needs the kind, before torch is imported.


@hookspec
def gatewayd_schedulers() -> Sequence[StrategyInfo[SchedulerStrategy]]:
    """Provide schedulers. Engine process."""
    raise AssertionError("a specification is not called")


@hookspec
def gatewayd_prefix_caches() -> Sequence[StrategyInfo[PrefixCacheStrategy[Any]]]:
    """Provide prefix caches. Engine process."""
    raise AssertionError("a specification is not called")


@hookspec
def gatewayd_evictions() -> Sequence[StrategyInfo[EvictionStrategy]]:
    """Provide eviction strategies. Engine process."""
    raise AssertionError("a specification is not called")


@hookspec
def gatewayd_preemptions() -> Sequence[StrategyInfo[PreemptionStrategy]]:
    """Provide preemption strategies. Engine process."""
    raise AssertionError("a specification is not called")


@hookspec
def gatewayd_kv_tiers() -> Sequence[StrategyInfo[KvTierStrategy]]:
    """Provide KV tiers. Engine process."""
    raise AssertionError("a specification is not called")


@hookspec
def gatewayd_kv_codecs() -> Sequence[StrategyInfo[KvCodecStrategy]]:
    """Provide KV codecs. Engine process."""
    raise AssertionError("a specification is not called")


@hookspec
def gatewayd_kv_compressions() -> Sequence[StrategyInfo[KvCompressionStrategy]]:
    """Provide KV compression strategies. Engine process."""
    raise AssertionError("a specification is not called")


@hookspec
def gatewayd_quantizers() -> Sequence[StrategyInfo[QuantizerStrategy]]:
    """Provide quantizers. Engine process."""
    raise AssertionError("a specification is not called")


@hookspec
def gatewayd_model_backends() -> Sequence[StrategyInfo[ModelBackendStrategy]]:
    """Provide model backends. Engine process."""
    raise AssertionError("a specification is not called")


@hookspec
def gatewayd_logits_processors() -> Sequence[StrategyInfo[LogitsProcessor]]:
    """Provide logits processors. Engine process."""
    raise AssertionError("a specification is not called")


@hookspec
def gatewayd_guides() -> Sequence[StrategyInfo[GuideStrategy]]:
    """Provide guides. Engine process, and the gateway to check requests."""
    raise AssertionError("a specification is not called")


@hookspec
def gatewayd_drafters() -> Sequence[StrategyInfo[DrafterStrategy]]:
    """Provide drafters. Engine process."""
    raise AssertionError("a specification is not called")


@hookspec
def gatewayd_spec_controllers() -> Sequence[StrategyInfo[SpecControllerStrategy]]:
    """Provide speculation controllers. Engine process."""
    raise AssertionError("a specification is not called")


@hookspec
def gatewayd_admissions() -> Sequence[StrategyInfo[AdmissionStrategy]]:
    """Provide admission strategies. Gateway process."""
    raise AssertionError("a specification is not called")


@hookspec
def gatewayd_routers() -> Sequence[StrategyInfo[RouterStrategy]]:
    """Provide routers. Gateway process."""
    raise AssertionError("a specification is not called")


@hookspec
def gatewayd_model_routers() -> Sequence[StrategyInfo[ModelRouterStrategy]]:
    """Provide model routers. Gateway process."""
    raise AssertionError("a specification is not called")


@hookspec
def gatewayd_executors() -> Sequence[StrategyInfo[ExecutorStrategy]]:
    """Provide executors. Gateway process."""
    raise AssertionError("a specification is not called")


@hookspec
def gatewayd_residencies() -> Sequence[StrategyInfo[ResidencyStrategy]]:
    """Provide residency strategies. Gateway process. New in 1.29."""
    raise AssertionError("a specification is not called")


@hookspec
def gatewayd_tool_parsers() -> Sequence[StrategyInfo[ToolParserStrategy]]:
    """Provide tool call parsers. Gateway process."""
    raise AssertionError("a specification is not called")


@hookspec
def gatewayd_reasoning_parsers() -> Sequence[StrategyInfo[ReasoningParserStrategy]]:
    """Provide reasoning parsers. Gateway process."""
    raise AssertionError("a specification is not called")


@hookspec
def gatewayd_protocols() -> Sequence[StrategyInfo[ProtocolStrategy]]:
    """Provide protocols: routes of other APIs. Gateway process."""
    raise AssertionError("a specification is not called")


@hookspec
def gatewayd_upstreams() -> Sequence[StrategyInfo[UpstreamStrategy]]:
    """Provide upstreams: translators for servers to which requests are relayed. Gateway process."""
    raise AssertionError("a specification is not called")


# Life cycle of the daemon.


@hookspec
def gatewayd_started(info: DaemonInfo) -> None:
    """Called once the daemon serves requests. Gateway process, once."""


@hookspec
def gatewayd_metrics(registry: CollectorRegistry) -> None:
    """Add collectors to the registry behind ``/metrics``. Gateway process, once."""


# Life cycle of a request.


@hookspec
def gatewayd_request_admitted(event: RequestAdmitted) -> None:
    """Called when a request was sent to an engine. Gateway process."""


@hookspec
def gatewayd_request_finished(event: RequestFinished) -> None:
    """Called when a request ended; once for each admitted one. Gateway process."""


@hookspec
def gatewayd_stopping(reason: str) -> None:
    """Called when the daemon stops. Gateway process, once."""


# The console, a separate process.


@hookspec
def gatewayd_console_panels() -> Sequence[Panel]:
    """Provide screens. Console process, once."""
    raise AssertionError("a specification is not called")


@hookspec
def gatewayd_console_actions() -> Sequence[Action]:
    """Provide actions. Console process, once."""
    raise AssertionError("a specification is not called")
