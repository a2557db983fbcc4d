"""Strategies, which plugins provide: a name, a configuration and how to build one.

The life cycle of a strategy, in order:

1. its entry point is listed, not imported (installed is not enabled);
2. the configuration names it, so the entry point is imported and the hook of its kind called;
3. ``[<kind>.<name>]`` of the configuration is decoded into ``config_type``, which validates it;
4. ``build(config)`` creates the object and has no side effect;
5. ``open(resources)`` acquires what it needs from the host, concurrently with running requests;
6. it is used through the Protocol of its kind: plain bound methods, no hook call;
7. ``close()``, also after an ``open`` that failed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from gatewayd_hooks.detection import Detector

StrategyT = TypeVar("StrategyT", covariant=True)


class Kind(StrEnum):
    """Kinds of strategies; the value is the prefix of the entry point's name."""

    SCHEDULER = "scheduler"
    PREFIX_CACHE = "prefix_cache"
    EVICTION = "eviction"
    PREEMPTION = "preemption"
    ADMISSION = "admission"
    ROUTER = "router"
    MODEL_ROUTER = "model_router"
    EXECUTOR = "executor"
    RESIDENCY = "residency"
    TOOL_PARSER = "tool_parser"
    REASONING_PARSER = "reasoning_parser"
    PROTOCOL = "protocol"
    UPSTREAM = "upstream"
    LOGITS_PROCESSOR = "logits_processor"
    GUIDE = "guide"
    DRAFTER = "drafter"
    SPEC_CONTROLLER = "spec_controller"
    KV_TIER = "kv_tier"
    KV_CODEC = "kv_codec"
    KV_COMPRESSION = "kv_compression"
    QUANTIZER = "quantizer"
    MODEL_BACKEND = "model_backend"
    OBSERVER = "observer"
    CONSOLE = "console"


Reload = Literal["hot", "restart", "secret"]


class StrategyConfig(BaseModel):
    """Base of a strategy's settings: immutable, rejects unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def setting(
    default: Any,  # noqa: ANN401
    *,
    reload: Reload,
    doc: str,
    is_path: bool = False,
    **bounds: Any,  # noqa: ANN401
) -> Any:  # noqa: ANN401
    """Declare one setting of a strategy.

    Args:
        default: its value if the configuration does not set it.
        reload: ``hot`` (takes effect between two steps), ``secret`` (the same, and is never
            printed) or ``restart``.
        doc: one sentence for operators, with the unit.
        is_path: whether it is a string that names a file or a folder. Strategies get it absolute:
            the working directory of an engine is not the daemon's.
        bounds: ``ge``, ``le``, ``gt``, ``lt``, ``min_length`` and so on, as in pydantic.
    """
    extra: dict[str, Any] = {"reload": reload} | ({"is_path": True} if is_path else {})
    return Field(default, description=doc, json_schema_extra=extra, **bounds)


@dataclass(frozen=True, slots=True)
class StrategyInfo(Generic[StrategyT]):
    """Description of one strategy that a plugin provides.

    Attributes:
        name: its name in the configuration, ``[a-z0-9_]+``; equals the part after the dot of the
            entry point's name.
        config_type: its settings.
        build: creates the strategy; imports heavy modules inside, not at module level.
        summary: one line for ``gatewayd plugin``.
        requires_spec: the contract versions it works with, as a PEP 440 specifier.
        detector: for a logits processor that leaves a watermark: creates its detector, in the
            gateway process and from the same settings. Then the plugin must not import torch at
            module level.
    """

    name: str
    config_type: type[StrategyConfig]
    build: Callable[[Any], StrategyT]
    summary: str
    requires_spec: str = ">=1.0,<2"
    detector: Callable[[Any], Detector] | None = None


class Strategy(Protocol):
    """Methods that every strategy has in addition to those of its kind."""

    def open(self, resources: Any) -> None:  # noqa: ANN401
        """Acquire resources from the host; called once, before the first use.

        While requests run it is called in a concurrent thread, and the strategy that it replaces,
        perhaps of the same class, still works: do not change state that both share, and leave
        process-wide state (such as the number of threads, inference mode or signals) as it is. All
        other methods are called in one thread. Python code holds up engine steps through the
        interpreter lock: do long work in libraries that release it.
        """

    def close(self) -> None:
        """Release all resources. Called once, also after an ``open`` that raised."""
