"""What a plugin offers: a named strategy, its configuration and how to build it.

The life of a strategy, in order:

1. its entry point is listed, not imported (installed is not enabled);
2. the configuration names it, so the entry point is imported and the hook of its kind called;
3. ``[<kind>.<name>]`` of the configuration is decoded into ``config_type``, which validates it;
4. ``build(config)`` makes the object and has no side effect;
5. ``open(resources)`` takes what it needs from the host, beside the requests that run;
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
    """The slots a strategy can fill; the value is the prefix of its entry point's name."""

    SCHEDULER = "scheduler"
    PREFIX_CACHE = "prefix_cache"
    EVICTION = "eviction"
    PREEMPTION = "preemption"
    ADMISSION = "admission"
    ROUTER = "router"
    EXECUTOR = "executor"
    TOOL_PARSER = "tool_parser"
    REASONING_PARSER = "reasoning_parser"
    PROTOCOL = "protocol"
    LOGITS_PROCESSOR = "logits_processor"
    GUIDE = "guide"
    DRAFTER = "drafter"
    SPEC_CONTROLLER = "spec_controller"
    KV_TIER = "kv_tier"
    KV_CODEC = "kv_codec"
    KV_COMPRESSION = "kv_compression"
    QUANTIZER = "quantizer"
    OBSERVER = "observer"
    CONSOLE = "console"


Reload = Literal["hot", "restart", "secret"]


class StrategyConfig(BaseModel):
    """Base of a strategy's settings: unknown keys are refused, values do not change."""

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
        default: its value when the configuration is silent.
        reload: ``hot`` (takes effect between two steps), ``secret`` (the same, and is never
            printed) or ``restart``.
        doc: one sentence for operators, with the unit.
        is_path: whether it is a text that names a file or a folder. Strategies get it absolute: the
            working folder of an engine is not the daemon's.
        bounds: ``ge``, ``le``, ``gt``, ``lt``, ``min_length`` and so on, as in pydantic.
    """
    extra: dict[str, Any] = {"reload": reload} | ({"is_path": True} if is_path else {})
    return Field(default, description=doc, json_schema_extra=extra, **bounds)


@dataclass(frozen=True, slots=True)
class StrategyInfo(Generic[StrategyT]):
    """One strategy that a plugin offers.

    Attributes:
        name: what the configuration calls it, ``[a-z0-9_]+``; equals the part after the dot
            of the entry point's name.
        config_type: its settings.
        build: makes the strategy; imports what is heavy inside, not at the plugin's top.
        summary: one line for ``gatewayd plugin``.
        requires_spec: the contract versions it works with, as a PEP 440 specifier.
        detector: of a logits processor that leaves a mark: makes, in the gateway process and from
            the same settings, what finds it. Then the plugin's top must not import torch.
    """

    name: str
    config_type: type[StrategyConfig]
    build: Callable[[Any], StrategyT]
    summary: str
    requires_spec: str = ">=1.0,<2"
    detector: Callable[[Any], Detector] | None = None


class Strategy(Protocol):
    """What every strategy has beside the methods of its kind."""

    def open(self, resources: Any) -> None:  # noqa: ANN401
        """Take what is needed from the host; called once, before the first use.

        While requests run it is called in a thread beside them, and the strategy that it is to
        replace, perhaps of the same class, is at work meanwhile: change nothing that both share,
        and leave what a thread has for itself (as numbers of threads, inference mode or signals)
        as it is. All other methods are called in one thread. In Python code a step waits for the
        interpreter: do long work in libraries that let go of it.
        """

    def close(self) -> None:
        """Give everything back. Called once, also after an ``open`` that raised."""
