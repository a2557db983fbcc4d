"""Bound methods of strategies that an engine calls in every step, in one immutable record.

No hook is called here. The engine has one plan and replaces it as a whole, between two steps, when
a strategy changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from gatewayd_hooks.caching import EvictionStrategy, Match, PageOrigin, PrefixCacheStrategy
from gatewayd_hooks.logits import LogitsProcessor
from gatewayd_hooks.preemption import PreemptionStrategy, SwapCosts, Victim
from gatewayd_hooks.scheduling import Plan, QueueView, SchedulerStrategy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Enqueue(Protocol):
    """``SchedulerStrategy.enqueue``, bound."""

    def __call__(self, slot: int, view: QueueView, *, front: bool) -> None:
        """Add a waiting sequence."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Bound methods of the strategies; those of a prefix cache are None without one.

    Attributes:
        schedule: ``SchedulerStrategy.plan``.
        enqueue: ``SchedulerStrategy.enqueue``.
        dequeue: ``SchedulerStrategy.dequeue``.
        preempt: ``PreemptionStrategy.victim``.
        learn: ``LearnsCosts.learn``; None if the preemption strategy has no such method.
        begin: ``PrefixCacheStrategy.begin``.
        match: ``PrefixCacheStrategy.match``.
        insert: ``PrefixCacheStrategy.insert``.
        forget: ``PrefixCacheStrategy.forget``.
        release: ``EvictionStrategy.release``.
        reuse: ``EvictionStrategy.reuse``.
        evict: ``EvictionStrategy.victim``.
        num_evictable: ``EvictionStrategy.__len__``.
        cached: ``KnowsOrigins.cached``; None if the eviction strategy has no such method.
        pin: ``Pins.pin``; None if the eviction strategy has no such method.
        drop: ``Drops.drop``; None if the eviction strategy has no such method.
        pinned: ``TellsPins.pinned``; None if the eviction strategy has no such method.
        processors: the chain of logits processors, in order.
    """

    schedule: Callable[[QueueView], Plan]
    enqueue: Enqueue
    dequeue: Callable[[int], None]
    preempt: Callable[[QueueView, NDArray[np.int32]], Victim]
    learn: Callable[[SwapCosts], None] | None
    begin: Callable[[NDArray[np.int32], bytes], Any] | None
    match: Callable[[Any], Sequence[int] | Match] | None
    insert: Callable[[Any, NDArray[np.int32], NDArray[np.int32]], Sequence[int]] | None
    forget: Callable[[int], None] | None
    release: Callable[[int], None]
    reuse: Callable[[int], None]
    evict: Callable[[], int]
    num_evictable: Callable[[], int]
    cached: Callable[[int, PageOrigin], None] | None
    pin: Callable[[int, float], None] | None
    drop: Callable[[int], None] | None
    pinned: Callable[[], Collection[int]] | None
    processors: tuple[LogitsProcessor, ...]


def bind(
    *,
    scheduler: SchedulerStrategy,
    prefix_cache: PrefixCacheStrategy[Any] | None,
    eviction: EvictionStrategy,
    preemption: PreemptionStrategy,
    processors: Sequence[LogitsProcessor],
) -> StepPlan:
    """Look up the methods of opened strategies once, so that no step has to."""
    return StepPlan(
        schedule=scheduler.plan,
        enqueue=scheduler.enqueue,
        dequeue=scheduler.dequeue,
        preempt=preemption.victim,
        learn=getattr(preemption, "learn", None),
        begin=None if prefix_cache is None else prefix_cache.begin,
        match=None if prefix_cache is None else prefix_cache.match,
        insert=None if prefix_cache is None else prefix_cache.insert,
        forget=None if prefix_cache is None else prefix_cache.forget,
        release=eviction.release,
        reuse=eviction.reuse,
        evict=eviction.victim,
        num_evictable=eviction.__len__,
        cached=getattr(eviction, "cached", None),
        pin=getattr(eviction, "pin", None),
        drop=getattr(eviction, "drop", None),
        pinned=getattr(eviction, "pinned", None),
        processors=tuple(processors),
    )
